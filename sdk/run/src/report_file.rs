//! Files that get reports: they are checked before the launches, and replace nothing but an earlier report of their kind.

use std::{
    ffi::OsString,
    fs::{self, File, FileType, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_gate::evidence::SEEN;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::wrong_use::WrongUse;

/// Longest file that is read to find out whether it is a report.
const MOST_REPORT_BYTES: u64 = 256 << 20;
/// Beginning of a public key.
pub(crate) const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----";

/// A kind of report, by the parts that no other file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportKind {
    /// A text with this beginning.
    Text(&'static str),
    /// A JSON document with this text at this pointer.
    Json(&'static str, &'static str),
    /// A signed in-toto statement with this type of predicate.
    Signed(&'static str),
}

impl ReportKind {
    fn is_kind_of(self, bytes: &[u8]) -> bool {
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
        let has = |document: &Value, at: &str, text: &str| {
            document.pointer(at).and_then(Value::as_str) == Some(text)
        };
        match self {
            Self::Text(begins) => bytes.starts_with(begins.as_bytes()),
            Self::Json(at, text) => json(bytes).is_some_and(|document| has(&document, at, text)),
            Self::Signed(predicate) => {
                let envelope = json(bytes);
                let payload = envelope.as_ref().and_then(|of| of["payload"].as_str());
                let statement = payload.and_then(|text| STANDARD.decode(text).ok());
                let statement = statement.and_then(|bytes| json(&bytes));
                statement.is_some_and(|of| has(&of, "/predicateType", predicate))
            }
        }
    }
}

/// The file with the public key of a report of what was seen.
pub fn key_of(report: &Path) -> PathBuf {
    let mut name = OsString::from(report);
    name.push(".pub");
    name.into()
}

/// Refuses a file for what was seen, as [`check_report`] does. The file of its public key is checked too.
///
/// # Errors
/// Fails as [`check_report`] does.
pub fn check_seen_report(argument: &str, file: &Path) -> Result<(), WrongUse> {
    let refused = |problem: &str| {
        let shown = file.display();
        Err(WrongUse(format!("{argument} {shown}: {problem}")))
    };
    if is_stream(file) {
        return refused("its public key is written next to it; give a file");
    }
    let key = key_of(file);
    if !file.exists() && key.symlink_metadata().is_ok() {
        let shown = key.display();
        return refused(&format!(
            "{shown} exists, and its public key would replace it; give a new file"
        ));
    }
    check_report(argument, file, ReportKind::Signed(SEEN))?;
    check_report(argument, &key, ReportKind::Text(PUBLIC_KEY))
}

/// Refuses a file for a report that could not be written later, or that already holds something else.
///
/// # Errors
/// Fails if no file can be made there, or a report would replace another file.
pub fn check_report(argument: &str, file: &Path, kind: ReportKind) -> Result<(), WrongUse> {
    let problem = match folder_of(file) {
        _ if is_stream(file) => return Ok(()),
        _ if file.is_dir() => "it is a folder; expected a file".to_owned(),
        _ if is_of_another_kind(file, kind) => {
            "it exists, and a report would replace it; give a new file".to_owned()
        }
        folder if !folder.is_dir() => "its folder does not exist; make it first".to_owned(),
        folder => {
            let Err(error) = temporary_in(folder) else {
                return Ok(());
            };
            format!("no file can be made there: {error}; give another folder")
        }
    };
    Err(WrongUse(format!(
        "{argument} {}: {problem}",
        file.display()
    )))
}

/// Whether a file is there that is not such a report, such as the model or a key. An empty file may be replaced.
fn is_of_another_kind(file: &Path, kind: ReportKind) -> bool {
    if !file.is_file() {
        return file.exists();
    }
    let mut bytes = Vec::new();
    let most = match kind {
        ReportKind::Text(begins) => begins.len() as u64,
        _ => MOST_REPORT_BYTES,
    };
    let read = File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.is_err() || !bytes.is_empty() && !kind.is_kind_of(&bytes)
}

/// Writes a report as a whole or not at all: after a full disk, the report before it is still there. A link is replaced, and
/// its target stays as it is.
///
/// # Errors
/// The file cannot be written.
pub fn replace_report(file: &Path, text: &str) -> io::Result<()> {
    if is_stream(file) {
        return fs::write(file, text);
    }
    let mut made = temporary_in(folder_of(file))?;
    made.write_all(text.as_bytes())?;
    made.persist(file)?;
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|path| !path.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Makes a file that goes with the value, unless it is renamed before. The umask decides who may read it.
fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new();
    file.prefix(".epwatch-report-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

/// Whether a report is not kept there: the terminal, `/dev/null`, or an open file of this process, such as a shell's pipe.
fn is_stream(file: &Path) -> bool {
    let of_process = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd"];
    let is_device = |of: FileType| of.is_char_device();
    of_process.iter().any(|of| file.starts_with(of))
        || file.metadata().is_ok_and(|of| is_device(of.file_type()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const GATE: ReportKind = ReportKind::Json("/schema", "epwatch.gate/1");

    #[test]
    fn a_report_replaces_a_report_of_its_kind_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report");
        let signed = |predicate: &str| {
            let statement = format!(r#"{{"predicateType": "{predicate}"}}"#);
            format!(r#"{{"payload": "{}"}}"#, STANDARD.encode(statement))
        };
        let (seen, other) = (signed(SEEN), signed("https://example.test/other"));
        for (kind, own, others) in [
            (
                GATE,
                r#"{"schema": "epwatch.gate/1"}"#,
                [r#"{"schema": "epwatch.run/1"}"#, "{", "[1]"],
            ),
            (ReportKind::Signed(SEEN), &seen, [&other, "{}", "x"]),
            (
                ReportKind::Text("## mine"),
                "## mine: x",
                ["## m", "# mine", "x"],
            ),
        ] {
            let check = |text: &str| {
                fs::write(&file, text).unwrap();
                check_report("--out", &file, kind)
            };
            for free in [own, ""] {
                check(free).unwrap();
            }
            for other in others {
                let error = check(other).unwrap_err().to_string();
                assert!(error.contains("it exists, and a report would"), "{error}");
                assert_eq!(fs::read_to_string(&file).unwrap(), other);
            }
        }
    }

    #[test]
    fn the_key_of_a_report_replaces_no_other_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        check_seen_report("--report", &file).unwrap();
        fs::write(key_of(&file), PUBLIC_KEY).unwrap();
        let error = check_seen_report("--report", &file).unwrap_err();
        assert!(
            error.to_string().contains("report.json.pub exists"),
            "{error}"
        );
        let error = check_seen_report("--report", Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("give a file"), "{error}");
    }

    #[test]
    fn a_report_is_written_whole_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "old").unwrap();
        symlink(at("old"), at("link")).unwrap();
        replace_report(&at("link"), "new").unwrap();
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!((&*read("link"), &*read("old")), ("new", "old"));
        fs::create_dir(at("folder")).unwrap();
        replace_report(&at("folder"), "new").unwrap_err();
        replace_report(Path::new("/dev/null"), "new").unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["folder", "link", "old"]);
    }
}
