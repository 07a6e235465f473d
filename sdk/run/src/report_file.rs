//! Files that get reports: they are checked before the launches, and never replace another file.

use std::{fs::File, io::Read as _, path::Path};

use crate::{report, say::say, wrong_use::WrongUse};

/// Writes what was seen in a folder of launches as one signed file without names, next to its public key, and says so.
///
/// # Errors
/// Fails if a launch cannot be read, or the files cannot be written.
pub fn write_report(folder: &Path, file: &Path, is_broken_off: bool) -> anyhow::Result<()> {
    let key = report::write(folder, file, is_broken_off)?;
    say(format_args!(
        "{} has what was seen here; send it with {}",
        file.display(),
        key.display()
    ));
    Ok(())
}

/// Refuses a file for a report that could not be written later, or that already holds something else. Reports of one kind begin
/// with the same text.
///
/// # Errors
/// Fails if no file can be made there, or a report would replace another file.
pub fn check_report(argument: &str, file: &Path, begins: &str) -> Result<(), WrongUse> {
    let folder = file.parent().filter(|path| !path.as_os_str().is_empty());
    let problem = match folder {
        // A shell's pipe, or the terminal.
        _ if file.starts_with("/dev") => return Ok(()),
        _ if file.is_dir() => "it is a folder; expected a file",
        _ if is_of_another_kind(file, begins) => {
            "it exists, and a report would replace it; give a new file"
        }
        Some(folder) if !folder.is_dir() => "its folder does not exist; make it first",
        _ => return Ok(()),
    };
    Err(WrongUse(format!(
        "{argument} {}: {problem}",
        file.display()
    )))
}

/// Whether a file is there that no report is, such as the model or a key. An empty file may be replaced.
fn is_of_another_kind(file: &Path, begins: &str) -> bool {
    if !file.is_file() {
        return file.exists();
    }
    let mut first = Vec::new();
    let most = begins.len() as u64;
    let read = File::open(file).and_then(|file| file.take(most).read_to_end(&mut first));
    read.is_ok() && !first.is_empty() && first != begins.as_bytes()
}
