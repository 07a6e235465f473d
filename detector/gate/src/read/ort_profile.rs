//! Reads ONNX Runtime's profile of one session, event by event: the file may have any size.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, Read},
};

use serde::{
    Deserialize, Deserializer as _,
    de::{SeqAccess, Visitor},
};
use serde_json::Value;

use super::input::{MOST_US, ReadError, malformed};
use crate::{
    mistakes::Mistake,
    profile::{MOST_SHARES, NodeShare, RunProfile},
    run::{Run, RunNode, Unit},
};

const KIND: &str = "ONNX Runtime's profile";

/// Number of events after which ONNX Runtime's profiler writes no more.
const MOST_EVENTS: usize = 1_000_000;
/// Longest event: a name, shapes and little else.
const MOST_EVENT_BYTES: usize = 1 << 20;
/// Maximum number of EPs; a session has a few.
const MOST_EPS: usize = 64;
/// Maximum number of nodes of a session, and the longest of their names.
const MOST_NODES: usize = 20_000;
const MOST_NAME_BYTES: usize = 512;

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
    op_name: String,
    /// Its number in the session.
    node_index: Value,
    input_type_shape: Value,
    output_type_shape: Value,
}

pub(super) fn read(input: impl Read) -> Result<Run, ReadError> {
    let left = Cell::new(MOST_EVENT_BYTES);
    let input = Bounded { input, left: &left };
    let mut json = serde_json::Deserializer::from_reader(input);
    let (found, events) = json
        .deserialize_seq(Events { left: &left })
        .and_then(|found| json.end().map(|()| found))
        .map_err(|error| {
            let expected = "a JSON array of events, which is whole only after the session has ended or end_profiling was called";
            malformed(KIND, error.to_string(), expected)
        })?;
    if events >= MOST_EVENTS {
        let what = format!("{MOST_EVENTS} events, after which the profiler writes no more");
        return Err(malformed(KIND, what, "fewer runs"));
    }
    if let Some(us) = found.wrong_us {
        let what = format!("a run of {us} us");
        return Err(malformed(KIND, what, "runs of an hour at most"));
    }
    // Nodes that were left out could be on the CPU.
    if found.is_beyond {
        let what = format!(
            "more than {MOST_NODES} nodes or {MOST_EPS} EPs, or a name of more than {MOST_NAME_BYTES} bytes"
        );
        return Err(malformed(KIND, what, "the profile of a part of the model"));
    }
    if found.runs_us.is_empty() {
        let expected = "a session that is run before it ends";
        return Err(malformed(KIND, "no event model_run", expected));
    }
    Ok(found.run())
}

/// Sums over the events of a profile.
#[derive(Default)]
struct Found {
    runs_us: Vec<u64>,
    eps: BTreeSet<String>,
    /// Nodes by EP and name, each with its number of events.
    nodes: BTreeMap<(String, String), RunNode>,
    /// Events of each node of the session, by EP and the profile's own name and number. Several nodes of the session
    /// may have one name in the model, because ONNX Runtime adds nodes that change the layout of tensors.
    events: BTreeMap<(String, String, String), u64>,
    /// Time of each of `nodes`, in microseconds.
    us: BTreeMap<(String, String), u64>,
    /// A node or an EP was left out.
    is_beyond: bool,
    /// A duration that no run can have. ONNX Runtime's clock has whole microseconds, so 0 is possible.
    wrong_us: Option<i64>,
}

impl Found {
    fn add(&mut self, event: Event) {
        let Some(ep) = event.args.provider else {
            return;
        };
        if self.eps.len() < MOST_EPS || self.eps.contains(&ep) {
            self.eps.insert(ep.clone());
        } else {
            self.is_beyond = true;
        }
        let name = plain_name(&event.name).to_owned();
        if event.name.len() > 2 * MOST_NAME_BYTES {
            self.is_beyond = true;
            return;
        }
        let own = (
            ep.clone(),
            event.name.clone(),
            event.args.node_index.to_string(),
        );
        if self.events.len() >= MOST_NODES && !self.events.contains_key(&own) {
            self.is_beyond = true;
            return;
        }
        let events = self.events.entry(own).or_default();
        *events += 1;
        let key = (ep, name);
        if self.us.len() < MOST_NODES || self.us.contains_key(&key) {
            let us = self.us.entry(key.clone()).or_default();
            *us = us.saturating_add(u64::try_from(event.dur).unwrap_or(0));
        }
        if let Some(node) = self.nodes.get_mut(&key) {
            node.events = node.events.max(*events);
        } else if self.nodes.len() < MOST_NODES && key.1.len() <= MOST_NAME_BYTES {
            let node = RunNode {
                name: key.1.clone(),
                op_type: event.args.op_name.chars().take(MOST_NAME_BYTES).collect(),
                unit: Unit::of_ep(&key.0),
                events: 1,
                macs_by_shapes: macs_by_shapes(
                    &event.args.op_name,
                    &event.args.input_type_shape,
                    &event.args.output_type_shape,
                ),
            };
            self.nodes.insert(key, node);
        } else {
            self.is_beyond = true;
        }
    }

    fn run(self) -> Run {
        let runs = self.runs_us.len() as u64;
        let profile = RunProfile {
            files: Vec::new(),
            nodes: shares(&self.us, &self.nodes),
        };
        let nodes: Vec<RunNode> = self.nodes.into_values().collect();
        let on_npu = nodes.iter().filter(|node| node.unit == Unit::Npu).count();
        let mut mistakes = Vec::new();
        if nodes.iter().any(|node| node.op_type == "EPContext") {
            mistakes.push(Mistake::ep_context());
        }
        // A node that runs once per run has as many events as there are runs.
        let body = nodes
            .iter()
            .find(|node| node.unit != Unit::Npu && node.events > runs);
        mistakes.extend(body.map(|node| Mistake::loop_body(&node.name)));
        Run {
            source: "ort_profile",
            runs_us: self.runs_us,
            eps: Some(self.eps),
            partitions: u32::try_from(on_npu).ok(),
            nodes,
            profile: Some(profile),
            mistakes,
            ..Run::default()
        }
    }
}

/// The nodes that take longest.
fn shares(
    us: &BTreeMap<(String, String), u64>,
    nodes: &BTreeMap<(String, String), RunNode>,
) -> Vec<NodeShare> {
    let all: f64 = us.values().map(|us| *us as f64).sum();
    let mut longest: Vec<_> = us.iter().filter(|(_, us)| **us > 0).collect();
    longest.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then(a.cmp(b)));
    let each = longest.into_iter().take(MOST_SHARES);
    each.map(|(key, us)| NodeShare {
        name: key.1.clone(),
        op_type: nodes
            .get(key)
            .map_or(String::new(), |node| node.op_type.clone()),
        ep: key.0.clone(),
        share: *us as f64 / all,
    })
    .collect()
}

/// A node's name without what ONNX Runtime adds when it fuses, lays out or profiles it.
pub(super) fn plain_name(name: &str) -> &str {
    let name = name.strip_suffix("_kernel_time").unwrap_or(name);
    let name = name.strip_prefix("fused ").unwrap_or(name);
    let name = name.strip_suffix("_nchwc").unwrap_or(name);
    match name.rsplit_once("_token_") {
        Some((plain, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => plain,
        _ => name,
    }
}

/// MACs of a convolution or a matrix product by the shapes of its event. Prepacked weights have none.
fn macs_by_shapes(op: &str, inputs: &Value, outputs: &Value) -> Option<u64> {
    let out: u64 = product(&shape(outputs, 0)?)?;
    let per_element = if op.contains("Conv") && !op.contains("Transpose") {
        let weights = shape(inputs, if op.starts_with("QLinear") { 3 } else { 1 })?;
        product(weights.get(1..).filter(|rest| rest.len() >= 2)?)?
    } else if op.contains("Gemm") || op.contains("MatMul") {
        *shape(inputs, 0)?.last()?
    } else {
        return None;
    };
    out.checked_mul(per_element)
}

/// Dimensions of the shape at index `at`. Each shape is an object of type and dimensions.
fn shape(shapes: &Value, at: usize) -> Option<Vec<u64>> {
    let dims = shapes.get(at)?.as_object()?.values().next()?.as_array()?;
    dims.iter().map(Value::as_u64).collect()
}

fn product(dims: &[u64]) -> Option<u64> {
    dims.iter()
        .try_fold(1_u64, |product, dim| product.checked_mul(*dim))
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
    type Value = (Found, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut n) = (Found::default(), 0);
        while let Some(event) = events.next_element::<Event>()? {
            n += 1;
            self.left.set(MOST_EVENT_BYTES);
            if event.name == "model_run" && n <= MOST_EVENTS {
                match u64::try_from(event.dur) {
                    Ok(us) if us as f64 <= MOST_US => found.runs_us.push(us),
                    _ => found.wrong_us = Some(event.dur),
                }
            }
            found.add(event);
        }
        Ok((found, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two events as ONNX Runtime 1.31.1 writes them.
    const NODE: &str = r#"{"cat" : "Node","pid" :1,"tid" :1,"dur" :96,"ts" :4402,"ph" : "X","name" :"fused fc1_kernel_time","args" : {"thread_scheduling_stats" : {"main_thread": {"core": -1}},"op_name" : "FusedGemm","provider" : "CPUExecutionProvider"}}"#;
    const RUN: &str = r#"{"cat" : "Session","pid" :1,"tid" :1,"dur" :157,"ts" :4386,"ph" : "X","name" :"model_run","args" : {}}"#;

    fn read(text: &str) -> Result<Run, ReadError> {
        super::read(text.as_bytes())
    }

    #[track_caller]
    fn check_refused(found: Result<Run, ReadError>, says: &str) {
        let error = found.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn runs_and_eps_are_read() {
        let found = read(&format!("[\n{NODE},\n{RUN},\n{RUN}\n]\n")).unwrap();
        assert_eq!(found.runs_us, [157, 157]);
        let eps = BTreeSet::from(["CPUExecutionProvider".to_owned()]);
        assert_eq!(found.eps, Some(eps));
        let [node] = &found.nodes[..] else {
            panic!("{:?}", found.nodes)
        };
        assert_eq!(
            (&*node.name, &*node.op_type, node.events),
            ("fc1", "FusedGemm", 1)
        );
        // No event has a field `flops`, and this one has no shapes.
        assert_eq!(node.macs_by_shapes, None);
    }

    #[test]
    fn nodes_have_their_share_of_the_time() {
        let other = NODE
            .replace("fused fc1", "fc2")
            .replace("\"dur\" :96", "\"dur\" :32");
        let found = read(&format!("[{NODE},{other},{RUN},{NODE},{other},{RUN}]")).unwrap();
        let nodes = found.profile.unwrap().nodes;
        let shares: Vec<(&str, f64)> = nodes.iter().map(|node| (&*node.name, node.share)).collect();
        assert_eq!(shares, [("fc1", 0.75), ("fc2", 0.25)]);
        assert_eq!(nodes[0].ep, "CPUExecutionProvider");
    }

    #[test]
    fn names_are_those_of_the_model() {
        for (name, plain) in [
            ("fused fc1_kernel_time", "fc1"),
            ("r0_nchwc_kernel_time", "r0"),
            ("conv0_token_12_kernel_time", "conv0"),
            ("conv_token_x", "conv_token_x"),
        ] {
            assert_eq!(plain_name(name), plain);
        }
    }

    #[test]
    fn macs_are_counted_from_shapes_where_they_suffice() {
        let count = |op: &str, inputs: &str, outputs: &str| {
            let value = |text: &str| serde_json::from_str(text).unwrap();
            macs_by_shapes(op, &value(inputs), &value(outputs))
        };
        let (input, weights, out) = (
            r#"{"float":[1,3,32,32]}"#,
            r#"{"float":[16,3,3,3]}"#,
            r#"[{"float":[1,16,32,32]}]"#,
        );
        let conv = 16 * 32 * 32 * 27;
        assert_eq!(
            count("Conv", &format!("[{input},{weights}]"), out),
            Some(conv)
        );
        let quantised = format!(r#"[{input},{{"float":[]}},{{"uint8":[]}},{weights}]"#);
        assert_eq!(count("QLinearConv", &quantised, out), Some(conv));
        assert_eq!(
            count("Gemm", r#"[{"float":[1,1024]}]"#, r#"[{"float":[1,256]}]"#),
            Some(262_144)
        );
        // No MACs: prepacked weights, other ops, and hostile shapes.
        assert_eq!(count("Conv", &format!("[{input}]"), out), None);
        assert_eq!(
            count("Relu", r#"[{"float":[1,4]}]"#, r#"[{"float":[1,4]}]"#),
            None
        );
        let huge = format!(r#"[{{"float":[{0},{0}]}}]"#, u64::MAX);
        assert_eq!(count("Gemm", &huge, &huge), None);
        assert_eq!(count("Gemm", "3", r#"["x"]"#), None);
    }

    /// Nodes that are left out could be on the CPU, so a share without them would be too high.
    #[test]
    fn names_beyond_the_bound_are_refused() {
        let long = NODE.replace("fused fc1", &"x".repeat(MOST_NAME_BYTES + 1));
        check_refused(read(&format!("[{long},{RUN}]")), "more than 512 bytes");
    }

    /// The body of a Loop has an event for each turn.
    #[test]
    fn more_events_than_runs_and_precompiled_models_are_named() {
        let found = read(&format!("[{NODE},{NODE},{RUN}]")).unwrap();
        assert_eq!(found.mistakes[0].id, "loop_body");
        assert_eq!(read(&format!("[{NODE},{RUN}]")).unwrap().mistakes, []);
        // Two nodes of one name, which the layout transformer made.
        let other = NODE.replace("fused fc1", "fc1_token_9");
        let found = read(&format!("[{NODE},{other},{RUN}]")).unwrap();
        assert_eq!((found.nodes.len(), found.mistakes), (1, Vec::new()));
        let [a, b] = ["33", "40"].map(|n| {
            NODE.replace(
                "\"op_name\"",
                &format!("\"node_index\" : \"{n}\",\"op_name\""),
            )
        });
        assert_eq!(read(&format!("[{a},{b},{RUN}]")).unwrap().mistakes, []);
        let context = NODE.replace("FusedGemm", "EPContext");
        let found = read(&format!("[{context},{RUN}]")).unwrap();
        assert_eq!(found.mistakes[0].id, "ep_context");
    }

    #[test]
    fn cut_empty_and_foreign_files_are_named() {
        let whole = format!("[\n{NODE},\n{RUN}\n]\n");
        for at in 1..whole.len() - 2 {
            check_refused(read(&whole[..at]), "end_profiling");
        }
        check_refused(read(&format!("[{NODE}]")), "no event model_run");
        check_refused(read("[]"), "no event model_run");
        for us in ["-157", "9223372036854775807"] {
            let run = RUN.replace("157", us);
            check_refused(read(&format!("[{NODE},{run}]")), "a run of");
        }
        for other in ["{}", "[1]", "[] []", "[{\"dur\": \"1\"}]"] {
            check_refused(read(other), "a JSON array of events");
        }
    }

    /// A reader without a bound would never end.
    #[test]
    fn an_endless_text_is_refused() {
        for text in ["[{\"name\": \"", "[{\"other\": \"", "[", "[{}]"] {
            let endless = text.as_bytes().chain(io::repeat(b' '));
            check_refused(super::read(endless), "1 MiB");
        }
    }

    /// The test's input generates each event when it is read, so the profile is never in memory.
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
        let full = super::read(std::io::BufReader::new(Endless(0)));
        check_refused(full, "1000000 events");
    }
}
