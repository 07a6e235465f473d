//! What `ensure` tells while it works, and a renderer for people.
//!
//! Everything goes to standard error: standard output belongs to the command's answer.

use std::{
    fmt,
    io::{IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

/// One step of making an engine available. An engine that is there already tells only `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The entry is missing or damaged and will be fetched.
    Started {
        /// The entry, `libchdb-26.7.3-stable.1`.
        name: String,
        /// About how much will come over the network; 0 if unknown.
        download_bytes: u64,
    },
    /// Another process is fetching the same entry; this one waits for it.
    WaitingForLock {
        /// The entry.
        name: String,
        /// The lock file.
        lock: PathBuf,
    },
    /// How much has arrived; told a few times a second.
    Downloading {
        /// The entry.
        name: String,
        /// Bytes on disk so far.
        bytes: u64,
    },
    /// The download is complete and is being unpacked.
    Unpacking {
        /// The entry.
        name: String,
    },
    /// Every pinned file has the hash it must have.
    Verified {
        /// The entry.
        name: String,
        /// Files kept.
        files: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// The entry can be used.
    Ready {
        /// The entry.
        name: String,
        /// Its folder.
        dir: PathBuf,
    },
}

/// Returns a renderer for people: a progress bar on a terminal, plain lines elsewhere.
///
/// Says nothing about engines that were there already.
pub fn console() -> impl FnMut(Progress) {
    let mut renderer = Renderer::new(std::io::stderr().is_terminal());
    move |progress| renderer.show(&progress)
}

struct Renderer {
    terminal: bool,
    bar: Option<ProgressBar>,
    expected_bytes: u64,
    quarters_told: u64,
    /// Whoever read that something is being waited for also reads that it came.
    owes_ready: bool,
}

impl fmt::Debug for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renderer")
            .field("terminal", &self.terminal)
            .finish_non_exhaustive()
    }
}

impl Renderer {
    fn new(terminal: bool) -> Self {
        Self {
            terminal,
            bar: None,
            expected_bytes: 0,
            quarters_told: 0,
            owes_ready: false,
        }
    }

    fn show(&mut self, progress: &Progress) {
        match progress {
            Progress::Started {
                name,
                download_bytes,
            } => {
                self.expected_bytes = *download_bytes;
                self.quarters_told = 0;
                self.owes_ready = true;
                if self.terminal {
                    self.bar = Some(bar(*download_bytes));
                    self.message(format!("fetching {name}"));
                } else {
                    line(&format!("fetching {name} ({})", megabytes(*download_bytes)));
                }
            }
            Progress::WaitingForLock { name, lock } => {
                self.owes_ready = true;
                line(&format!(
                    "{name}: another process is fetching it, waiting ({})",
                    lock.display()
                ));
            }
            Progress::Downloading { name, bytes } => match &self.bar {
                // Package managers hold a copy of their own for a moment: more than all is all.
                Some(bar) => bar.set_position((*bytes).min(self.expected_bytes)),
                None => self.tell_quarters(name, *bytes),
            },
            Progress::Unpacking { name } => self.say(format!("unpacking {name}")),
            Progress::Verified { name, files, bytes } => {
                self.say(format!(
                    "verified {name}: {files} files, {}",
                    megabytes(*bytes)
                ));
            }
            Progress::Ready { name, dir } => {
                if let Some(bar) = self.bar.take() {
                    bar.finish_and_clear();
                }
                if std::mem::take(&mut self.owes_ready) {
                    line(&format!("ready {name}: {}", dir.display()));
                }
            }
        }
    }

    fn say(&self, text: String) {
        if self.bar.is_some() {
            self.message(text)
        } else {
            line(&text)
        }
    }

    fn message(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
        }
    }

    /// A log has no use for more than a few lines a download.
    fn tell_quarters(&mut self, name: &str, bytes: u64) {
        if self.expected_bytes == 0 {
            return;
        }
        let quarters = (bytes * 4 / self.expected_bytes).min(4);
        if quarters > self.quarters_told {
            self.quarters_told = quarters;
            line(&format!("downloading {name}: {} %", quarters * 25));
        }
    }
}

fn bar(download_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(download_bytes);
    let style = ProgressStyle::with_template("{spinner} {msg} {bar:24} {bytes}/{total_bytes}")
        .expect("the template is a constant that a test renders");
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn megabytes(bytes: u64) -> String {
    if bytes == 0 {
        "size unknown".to_owned()
    } else {
        format!("{} MB", bytes.div_ceil(1_000_000))
    }
}

/// A closed standard error must not fail the fetch.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_template_is_valid() {
        bar(10).finish_and_clear();
    }

    #[test]
    fn plain_lines_name_each_quarter_once() {
        let mut renderer = Renderer::new(false);
        renderer.show(&Progress::Started {
            name: "x-1".to_owned(),
            download_bytes: 400,
        });
        for bytes in [10, 110, 120, 399, 800] {
            renderer.show(&Progress::Downloading {
                name: "x-1".to_owned(),
                bytes,
            });
        }
        assert_eq!(renderer.quarters_told, 4);
    }
}
