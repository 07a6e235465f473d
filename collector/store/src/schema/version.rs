//! Compares the version of a target's ClickHouse with the oldest version that understands this program's SQL.

use futures::future::BoxFuture;

use super::error::MigrateError;
use crate::client::{StoreTarget, client};

/// The least version of ClickHouse: the older of the two lines with long-term support that tests run on.
pub const LEAST_VERSION: (u32, u32) = (25, 8);

/// Refuses a ClickHouse older than [`LEAST_VERSION`].
///
/// # Errors
/// [`MigrateError::TooOld`], or the store did not answer.
pub fn check_version(target: &StoreTarget) -> BoxFuture<'_, Result<(), MigrateError>> {
    Box::pin(async move {
        let version = client(&target.clone().with_database(""))
            .query("SELECT version()")
            .fetch_one::<String>()
            .await
            .map_err(|source| MigrateError::Store {
                what: "read the version of ClickHouse".to_owned(),
                source,
            })?;
        if is_new_enough(&version) {
            return Ok(());
        }
        Err(MigrateError::TooOld {
            version,
            least: LEAST_VERSION,
        })
    })
}

/// False for a version without two numbers: no tested release has one.
fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    (major, minor) >= LEAST_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_before_the_least_are_too_old() {
        for version in [
            "25.8.2.1",
            "25.10",
            "26.3.9.1",
            "26.3.1.20001.altinitystable",
        ] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["25.7.9.1", "24.12.1.1", "25", "", "head"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }

    #[test]
    fn the_refusal_names_both_versions_and_waits_for_no_restart() {
        let error = MigrateError::TooOld {
            version: "24.8.1.1".to_owned(),
            least: LEAST_VERSION,
        };
        let text = error.to_string();
        assert!(text.contains("24.8.1.1") && text.contains("25.8"), "{text}");
        assert!(!error.is_temporary());
    }
}
