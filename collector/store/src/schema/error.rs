//! Reasons why a database cannot be brought to the schema.

use super::cluster::ClusterStatementError;

/// The end of a sentence about a store or a backup that has no series.
pub const MADE_IN_DEVELOPMENT: &str =
    "made by a development version of epwatch, whose schema has no upgrade; start a new data_dir";

/// The reason why a database cannot be brought to the schema.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The versions in the list are not 1, 2, 3 and so on.
    #[error("migration {name} has version {found}, expected {expected}: versions count from 1")]
    Numbering {
        /// Name of the file.
        name: &'static str,
        /// Version of the file.
        found: u32,
        /// The version that belongs to its position in the list.
        expected: u32,
    },
    /// A placeholder has no value.
    #[error("migration {version} ({name}) uses ${{{placeholder}}}, which has no value")]
    Placeholder {
        /// The file's version.
        version: u32,
        /// Name of the file.
        name: &'static str,
        /// Name of the placeholder.
        placeholder: String,
    },
    /// A statement cannot be spread over a cluster.
    #[error("failed to spread migration {version} ({name}) over the cluster")]
    Cluster {
        /// The file's version; 0 for the runner's own table.
        version: u32,
        /// Name of the file.
        name: &'static str,
        /// The error with the statement that cannot be converted.
        #[source]
        source: ClusterStatementError,
    },
    /// A file differs from the one that was applied.
    #[error(
        "migration {version} ({name}) differs from the one this store was made with (checksum \
         {found}, store has {stored}); restore the file and put the change in a new one"
    )]
    Changed {
        /// The file's version.
        version: u32,
        /// Name of the file.
        name: &'static str,
        /// Its checksum here.
        found: String,
        /// The checksum of the file that was applied.
        stored: String,
    },
    /// The records of the store have no series: it was made before 0.1.0.
    #[error("the store was {MADE_IN_DEVELOPMENT} (on a ClickHouse server: a new database)")]
    Development,
    /// The store has the files of another series.
    #[error(
        "the store has the schema series {stored}, which this epwatch ({known}) cannot convert; use the \
         epwatch that made it, or start a new data_dir (on a ClickHouse server: a new database)"
    )]
    OtherSeries {
        /// Series in the store.
        stored: String,
        /// Series of this program.
        known: &'static str,
    },
    /// The store was made by a newer program.
    #[error("the store has schema version {stored}, this epwatch knows {known}; upgrade epwatch")]
    Newer {
        /// Version in the store.
        stored: u32,
        /// Highest version known here.
        known: u32,
    },
    /// The server is older than [`super::LEAST_VERSION`].
    #[error(
        "the store is ClickHouse {version}, expected {}.{} or newer; upgrade the server",
        least.0,
        least.1
    )]
    TooOld {
        /// Version of the server.
        version: String,
        /// The least version that tests run on: major, minor.
        least: (u32, u32),
    },
    /// The store refused or did not answer.
    #[error("failed to {what}")]
    Store {
        /// The step, after "failed to".
        what: String,
        /// Answer of the store.
        #[source]
        source: clickhouse::error::Error,
    },
}

impl MigrateError {
    /// Returns whether the same call may succeed later without an operator. Every error of a store, its Keeper or a
    /// proxy counts as temporary, unless it is known to be final. An unknown error counts as temporary, because a wait
    /// loses nothing.
    pub fn is_temporary(&self) -> bool {
        let is_final = |code| FOR_GOOD.contains(&code);
        matches!(self, MigrateError::Store { .. }) && !self.code().is_some_and(is_final)
    }

    /// Returns ClickHouse's number of the error, if ClickHouse answered.
    pub fn code(&self) -> Option<u32> {
        let MigrateError::Store {
            source: clickhouse::error::Error::BadResponse(text),
            ..
        } = self
        else {
            return None;
        };
        let rest = text.strip_prefix("Code: ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

/// ClickHouse's codes of final errors: the statement, the server's version or the user's rights are wrong.
const FOR_GOOD: [u32; 15] = [
    46,  // UNKNOWN_FUNCTION
    47,  // UNKNOWN_IDENTIFIER
    48,  // NOT_IMPLEMENTED
    50,  // UNKNOWN_TYPE
    56,  // UNKNOWN_STORAGE
    60,  // UNKNOWN_TABLE
    62,  // SYNTAX_ERROR
    115, // UNKNOWN_SETTING
    164, // READONLY
    192, // UNKNOWN_USER
    193, // WRONG_PASSWORD
    194, // REQUIRED_PASSWORD
    497, // ACCESS_DENIED
    516, // AUTHENTICATION_FAILED
    701, // CLUSTER_DOESNT_EXIST
];

pub(super) fn unread(source: clickhouse::error::Error) -> MigrateError {
    let what = "read the applied migrations".to_owned();
    MigrateError::Store { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_temporary(answer: &str, code: Option<u32>, is_temporary: bool) {
        let source = clickhouse::error::Error::BadResponse(answer.to_owned());
        let what = "read the applied migrations".to_owned();
        let error = MigrateError::Store { what, source };
        assert_eq!(error.code(), code, "{answer}");
        assert_eq!(error.is_temporary(), is_temporary, "{answer}");
    }

    #[test]
    fn bad_times_of_a_store_are_temporary_and_refusals_are_not() {
        for answer in [
            "503 Service Unavailable",
            "<html>502 Bad Gateway</html>",
            "Code: ?",
        ] {
            check_temporary(answer, None, true);
        }
        for (code, name) in [
            (159, "TIMEOUT_EXCEEDED"),
            (202, "TOO_MANY_SIMULTANEOUS_QUERIES"),
            (241, "MEMORY_LIMIT_EXCEEDED"),
            (242, "TABLE_IS_READ_ONLY"),
            (243, "NOT_ENOUGH_SPACE"),
            (999, "KEEPER_EXCEPTION"),
        ] {
            let answer = format!("Code: {code}. DB::Exception: no. ({name})");
            check_temporary(&answer, Some(code), true);
        }
        let denied = "Code: 497. DB::Exception: epwatch: Not enough privileges. (ACCESS_DENIED)";
        check_temporary(denied, Some(497), false);
        // The error of an answer without a body.
        check_temporary("Code: 516", Some(516), false);
        let newer = MigrateError::Newer {
            stored: 2,
            known: 1,
        };
        assert!(!newer.is_temporary() && newer.code().is_none());
    }
}
