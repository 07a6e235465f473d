//! Reads a log line by line, and gives each line to its session.

use super::{
    MAX_LOG_SESSIONS,
    line::{Line, split_line},
    own_prefix::OwnPrefix,
    pasted,
    reason::setup_reason,
    session::SessionLog,
    session_reader::{SessionReader, up_to},
};

/// Longest line in bytes: several times the length of a node's name and reason.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Beginnings of messages that only the creation of a session writes.
const FACTS: [&str; 7] = [
    "Node placements",
    "Number of partitions supported by QNN EP: ",
    "Validation PASSED for ",
    "Validation FAILED for ",
    "GetCapability pass ",
    "Node supported: [",
    "Unsupported nodes in QNN EP: ",
];

/// Reads a whole log. Returns an entry for each session that it mentions, in order, at most 256.
///
/// ```
/// # use epwatch_sdk::placement::log::read_log;
/// let sessions = read_log([
///     "[V:onnxruntime:, session_state.cc:1578 VerifyEachNodeIsAssignedToAnEp] Node placements",
///     "[V:onnxruntime:, session_state.cc:1581 VerifyEachNodeIsAssignedToAnEp]  All nodes placed on \
///      [CPUExecutionProvider]. Number of nodes: 8",
/// ]);
/// assert_eq!(sessions[0].cpu_only_count(), Some(8));
/// ```
pub fn read_log<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> Vec<SessionLog> {
    let mut reader = LogReader::default();
    for line in lines {
        reader.line(line.as_ref());
    }
    reader.finish()
}

/// Reads line by line, so that the log need not be in memory.
///
/// Sessions are told apart by the process in logcat's prefix, by the session's id in ORT's header, and by the messages
/// that begin one.
#[derive(Debug, Default)]
pub struct LogReader {
    /// Sessions in the order of their first lines. Beyond the most sessions, the last entry is reused for all others,
    /// and is not returned as a session.
    sessions: Vec<Open>,
    own_prefix: OwnPrefix,
}

/// A session that may have further lines.
#[derive(Debug, Default)]
struct Open {
    /// The process in logcat's prefix; empty without one.
    process: String,
    /// The id in ORT's header of the session's own messages; empty while none was seen.
    id: String,
    is_initialised: bool,
    is_ended: bool,
    reader: SessionReader,
}

impl LogReader {
    /// Reads one line in any of the forms of [`read_log`].
    pub fn line(&mut self, line: &str) {
        let line = up_to(line, MAX_LINE_BYTES);
        let mut line = split_line(line);
        if line.header.is_empty() {
            line.text = self.own_prefix.without(line.text);
        }
        self.routed(line);
    }

    /// Reads one message as a logging function receives it: its code location, and its text of one or more lines.
    pub fn message(&mut self, location: &str, message: &str) {
        for (at, text) in message.lines().enumerate() {
            let header = if at == 0 { location } else { "" };
            let text = up_to(text, MAX_LINE_BYTES).trim_end();
            self.routed(Line {
                process: "",
                id: "",
                header,
                text,
            });
        }
    }

    /// Returns the sessions read so far.
    pub fn finish(self) -> Vec<SessionLog> {
        let sessions = self.sessions.into_iter().take(MAX_LOG_SESSIONS);
        let sessions = sessions.map(|open| open.reader.finish());
        sessions.filter(|session| !session.is_empty()).collect()
    }

    fn routed(&mut self, line: Line<'_>) {
        let text = line.text.trim_start();
        if let Some(at) = self.session_of(line, text) {
            self.sessions[at].reader.line(line);
        }
    }

    /// Finds the session that a line belongs to; begins a new session if the line begins one.
    fn session_of(&mut self, line: Line<'_>, text: &str) -> Option<usize> {
        let latest = self.latest(|open| open.process == line.process);
        if text.starts_with("Session Options {") {
            self.end(latest);
            return Some(self.begin(line));
        }
        if text.starts_with("Initializing session.") {
            let at = match latest {
                Some(at) if !self.sessions[at].is_initialised => at,
                _ => {
                    self.end(latest);
                    self.begin(line)
                }
            };
            self.sessions[at].is_initialised = true;
            return Some(at);
        }
        let is_fact = FACTS.iter().any(|fact| text.starts_with(fact));
        if !line.id.is_empty() {
            if let Some(at) = self.latest(|open| open.process == line.process && open.id == line.id)
            {
                return Some(at);
            }
            if is_fact {
                let at = match latest {
                    Some(at) if self.sessions[at].id.is_empty() => at,
                    _ => self.begin(line),
                };
                line.id.clone_into(&mut self.sessions[at].id);
                return Some(at);
            }
        }
        match latest {
            Some(at) => Some(at),
            None if line.header.is_empty() && !is_fact && !is_of_interest(text) => None,
            None => Some(self.begin(line)),
        }
    }

    fn latest(&self, is_it: impl Fn(&Open) -> bool) -> Option<usize> {
        self.sessions
            .iter()
            .rposition(|open| !open.is_ended && is_it(open))
    }

    fn end(&mut self, at: Option<usize>) {
        if let Some(at) = at {
            self.sessions[at].is_ended = true;
        }
    }

    fn begin(&mut self, line: Line<'_>) -> usize {
        let open = Open {
            process: line.process.to_owned(),
            ..Open::default()
        };
        if self.sessions.len() > MAX_LOG_SESSIONS {
            self.sessions
                .retain(|open| !open.is_ended || !open.reader.is_empty());
            self.sessions.truncate(MAX_LOG_SESSIONS);
        }
        self.sessions.push(open);
        self.sessions.len() - 1
    }
}

/// Whether a line without ORT's header may be the first of a session.
fn is_of_interest(text: &str) -> bool {
    setup_reason(text).is_some()
        || text.contains(" placed on [")
        || text.contains("Operator type: ")
        || pasted::is_pasted(text)
}
