//! Our own document of a launch, `epwatch.run/1`: what a runner on a phone writes.

use serde::Deserialize;
use serde_json::Value;

use super::input::{ReadError, malformed, micros};
use crate::{
    mistakes::Mistake,
    run::{Run, RunTarget},
};

/// Name and version of the document.
pub(super) const SCHEMA: &str = "epwatch.run/1";
const KIND: &str = "epwatch.run/1";

/// Android's thermal status `moderate`, from which clocks are lowered.
const THROTTLED_STATUS: u8 = 2;
/// Battery temperature from which a phone lowers its clocks, in degrees Celsius.
const HOT_BATTERY_C: f64 = 37.0;
/// Change of the CPU probe that shows another clock.
const PROBE_MOVED: f64 = 0.05;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunDocument {
    #[expect(dead_code, reason = "checked by the caller")]
    schema: String,
    #[serde(default)]
    target: MeasuredOn,
    #[serde(default)]
    model: MeasuredModel,
    #[serde(default)]
    runtime: Option<String>,
    runs_us: Vec<u64>,
    #[serde(default)]
    is_warm: bool,
    #[serde(default)]
    thermal_before: Option<u8>,
    #[serde(default)]
    thermal_after: Option<u8>,
    #[serde(default)]
    battery_c: Option<f64>,
    #[serde(default)]
    probe_before_us: Option<f64>,
    #[serde(default)]
    probe_after_us: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MeasuredOn {
    chipset: Option<String>,
    device: Option<String>,
    firmware: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MeasuredModel {
    sha256: Option<String>,
    /// Accepted, and not used: the hash names the model.
    #[serde(rename = "name")]
    _name: Option<String>,
}

pub(super) fn read(value: Value) -> Result<Run, ReadError> {
    let document: RunDocument = serde_json::from_value(value).map_err(|error| {
        malformed(
            KIND,
            error.to_string(),
            "the fields that docs/gate.md lists",
        )
    })?;
    let each = document.runs_us.iter().enumerate();
    for (at, us) in each {
        if micros(*us as f64).is_none() {
            let what = format!("runs_us[{at}] is {us}");
            return Err(malformed(KIND, what, "microseconds from 1 to an hour"));
        }
    }
    let why = document.throttled();
    let MeasuredOn {
        chipset,
        device,
        firmware,
    } = document.target;
    Ok(Run {
        source: "run",
        target: RunTarget {
            chipset,
            device,
            firmware,
            runtime: document.runtime,
            model_sha256: document.model.sha256,
            ..RunTarget::default()
        },
        runs_us: document.runs_us,
        is_warm: document.is_warm,
        mistakes: Vec::from_iter(why.map(|why| Mistake::throttled("this launch", &why))),
        ..Run::default()
    })
}

impl RunDocument {
    fn throttled(&self) -> Option<String> {
        let status = self.thermal_before.max(self.thermal_after);
        if let Some(status) = status.filter(|status| *status >= THROTTLED_STATUS) {
            return Some(format!("thermal status {status}"));
        }
        if let Some(battery) = self.battery_c.filter(|battery| *battery >= HOT_BATTERY_C) {
            return Some(format!("battery at {battery} C"));
        }
        let probe = self.probe_after_us? / self.probe_before_us?;
        ((probe - 1.0).abs() > PROBE_MOVED)
            .then(|| format!("the CPU probe takes {probe:.2} times as long after it"))
    }
}

#[cfg(test)]
mod tests {
    use crate::read::{ReadOptions, read, tests::only};

    #[test]
    fn a_throttled_launch_says_so() {
        let run = |fields: &str| {
            only(&format!(
                r#"{{"schema": "epwatch.run/1", "runs_us": [8210], "target": {{"chipset": "SM8650", "device": "a"}}{fields}}}"#
            ))
        };
        assert_eq!(run("").mistakes, []);
        assert_eq!(run("").target.chipset.as_deref(), Some("SM8650"));
        for fields in [
            r#", "thermal_after": 2"#,
            r#", "battery_c": 37.5"#,
            r#", "probe_before_us": 100, "probe_after_us": 106"#,
        ] {
            assert_eq!(run(fields).mistakes[0].id, "throttled", "{fields}");
        }
        assert_eq!(run(r#", "thermal_after": 1, "battery_c": 30"#).mistakes, []);
    }

    #[test]
    fn unknown_fields_and_no_times_are_refused() {
        for (text, says) in [
            (
                r#"{"schema": "epwatch.run/1", "runs_us": [0]}"#,
                "runs_us[0] is 0",
            ),
            (r#"{"schema": "epwatch.run/1", "run_us": [1]}"#, "run_us"),
            (r#"{"schema": "epwatch.run/1"}"#, "runs_us"),
        ] {
            let error = read(text.as_bytes(), ReadOptions::default()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
