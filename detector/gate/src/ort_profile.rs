//! Reads ONNX Runtime's profile of one session, event by event: the file may have any size.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fmt,
    io::{self, Read},
};

use serde::{
    Deserialize, Deserializer as _,
    de::{SeqAccess, Visitor},
};

/// Events after which ONNX Runtime's profiler writes no more.
const MOST_EVENTS: usize = 1_000_000;
/// Longest event: a name, shapes and little else.
const MOST_EVENT_BYTES: usize = 1 << 20;
/// Most names of EPs; a session has a few.
const MOST_EPS: usize = 64;

/// A profile without run times.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file ends early, or holds something else.
    #[error(
        "expected ONNX Runtime's profile, a JSON array of events; it is whole only after the session has ended or \
         end_profiling was called: {0}"
    )]
    Json(#[from] serde_json::Error),
    /// Later runs are missing.
    #[error(
        "the profile has {MOST_EVENTS} events, after which the profiler writes no more; profile fewer runs"
    )]
    Full,
    /// A session that was never run.
    #[error("the profile has no event model_run; run the session before it ends")]
    NoRuns,
}

/// A profile, as far as it is judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrtProfile {
    /// Durations of `model_run`, in order.
    pub runs_us: Vec<u64>,
    /// EPs that ran a node.
    pub eps: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: String,
    #[serde(default)]
    dur: i64,
    #[serde(default)]
    args: EventArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EventArgs {
    provider: Option<String>,
}

/// Reads a profile.
///
/// # Errors
/// It is cut off, full, without runs, or no profile.
pub fn ort_profile(input: impl Read) -> Result<OrtProfile, ProfileError> {
    let left = Cell::new(MOST_EVENT_BYTES);
    let input = Bounded { input, left: &left };
    let mut json = serde_json::Deserializer::from_reader(input);
    let (profile, events) = json.deserialize_seq(Events { left: &left })?;
    json.end()?;
    match profile.runs_us.is_empty() {
        _ if events >= MOST_EVENTS => Err(ProfileError::Full),
        true => Err(ProfileError::NoRuns),
        false => Ok(profile),
    }
}

/// Refuses a text that is longer than an event can be, before it takes memory.
struct Bounded<'a, R> {
    input: R,
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(out)?;
        let left = self.left.get().checked_sub(n);
        let too_long = || io::Error::other("an event is longer than 1 MiB");
        self.left.set(left.ok_or_else(too_long)?);
        Ok(n)
    }
}

struct Events<'a> {
    left: &'a Cell<usize>,
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = (OrtProfile, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Self::Value, A::Error> {
        let (mut profile, mut n) = (OrtProfile::default(), 0);
        while let Some(event) = events.next_element::<Event>()? {
            n += 1;
            self.left.set(MOST_EVENT_BYTES);
            if event.name == "model_run" && n <= MOST_EVENTS {
                profile.runs_us.push(event.dur.try_into().unwrap_or(0));
            }
            if let Some(ep) = event.args.provider.filter(|_| profile.eps.len() < MOST_EPS) {
                profile.eps.insert(ep);
            }
        }
        Ok((profile, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two events as ONNX Runtime 1.31.1 writes them.
    const NODE: &str = r#"{"cat" : "Node","pid" :1,"tid" :1,"dur" :96,"ts" :4402,"ph" : "X","name" :"fused fc1_kernel_time","args" : {"thread_scheduling_stats" : {"main_thread": {"core": -1}},"op_name" : "FusedGemm","provider" : "CPUExecutionProvider"}}"#;
    const RUN: &str = r#"{"cat" : "Session","pid" :1,"tid" :1,"dur" :157,"ts" :4386,"ph" : "X","name" :"model_run","args" : {}}"#;

    fn read(text: &str) -> Result<OrtProfile, ProfileError> {
        ort_profile(text.as_bytes())
    }

    #[test]
    fn runs_and_eps_are_read() {
        let found = read(&format!("[\n{NODE},\n{RUN},\n{RUN}\n]\n")).unwrap();
        assert_eq!(found.runs_us, [157, 157]);
        assert_eq!(
            found.eps,
            BTreeSet::from(["CPUExecutionProvider".to_owned()])
        );
    }

    #[test]
    fn cut_empty_and_foreign_files_are_named() {
        let whole = format!("[\n{NODE},\n{RUN}\n]\n");
        for at in 1..whole.len() - 2 {
            let error = read(&whole[..at]).unwrap_err().to_string();
            assert!(error.contains("end_profiling"), "{at}: {error}");
        }
        assert!(matches!(
            read(&format!("[{NODE}]")),
            Err(ProfileError::NoRuns)
        ));
        assert!(matches!(read("[]"), Err(ProfileError::NoRuns)));
        for other in ["{}", "[1]", "[] []", "[{\"dur\": \"1\"}]"] {
            assert!(matches!(read(other), Err(ProfileError::Json(_))), "{other}");
        }
    }

    /// A reader that read on would not end.
    #[test]
    fn an_endless_text_is_refused() {
        for text in ["[{\"name\": \"", "[{\"other\": \"", "[", "[{}]"] {
            let endless = text.as_bytes().chain(io::repeat(b' '));
            let error = ort_profile(endless).unwrap_err().to_string();
            assert!(error.contains("1 MiB"), "{text}: {error}");
        }
    }

    /// The reader makes up each event, so that nothing else holds the profile.
    #[test]
    fn a_full_profile_is_refused() {
        struct Endless(usize);
        impl Read for Endless {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                let text: &[u8] = match self.0 {
                    0 => b"[{}",
                    MOST_EVENTS => b"]",
                    n if n < MOST_EVENTS => b",{}",
                    _ => b"",
                };
                self.0 += 1;
                out[..text.len()].copy_from_slice(text);
                Ok(text.len())
            }
        }
        let full = ort_profile(std::io::BufReader::new(Endless(0)));
        assert!(matches!(full, Err(ProfileError::Full)));
    }
}
