//! Golden outputs that differ by more than rounding: on all chipsets alike, or on one of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::numbers::{counted, difference};

/// The place of the fault, as wrong outputs show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropPlace {
    /// All chipsets show it alike, so the cause is the quantisation of the model.
    Everywhere,
    /// This chipset shows it, and most others do not, or far less. The cause is its NPU.
    Here,
    /// No other chipset was tested with the input.
    Unknown,
}

/// The distance of golden outputs from the CPU of the same device, here and on other chipsets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputDrop {
    /// Devices whose output is off.
    pub hits: u64,
    /// Devices that were tested with the input.
    pub devices: u64,
    /// Id of the golden input whose outputs are compared.
    pub input: String,
    /// Where it points.
    pub place: DropPlace,
    /// Median cosine of NPU and CPU on the devices hit, -1 to 1.
    pub cosine: Option<f64>,
    /// Median of their largest difference.
    pub max_abs: Option<f64>,
    /// Other chipsets that were tested; those with few devices count as one.
    pub other_chipsets: u64,
    /// Other chipsets whose outputs are off as well.
    pub alike: u64,
    /// Median cosine over the other chipsets' devices.
    pub other_cosine: Option<f64>,
    /// Median of their largest difference.
    pub other_max_abs: Option<f64>,
    /// The first inner output that is off on most devices hit.
    pub first_off: Option<String>,
    /// Chance of so many in a healthy cohort.
    pub p: f64,
}

impl fmt::Display for OutputDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.place {
            DropPlace::Everywhere => "it is your quantisation, not one NPU: ",
            DropPlace::Here => "it is the NPU here, not your quantisation: ",
            DropPlace::Unknown => {
                "it may be your quantisation or this NPU, because no other chipset was tested: "
            }
        })?;
        let devices = counted(self.devices, "tested device");
        let here = apart(self.cosine, self.max_abs);
        let Self { hits, input, .. } = self;
        write!(
            f,
            "with the input {input} the outputs of NPU and CPU have {here} on {hits} of {devices}"
        )?;
        if self.other_chipsets > 0 {
            let there = apart(self.other_cosine, self.other_max_abs);
            let others = match self.other_chipsets {
                1 => "the app's other chipset".to_owned(),
                n => format!("the app's {n} other chipsets"),
            };
            write!(f, ", and {there} on {others}")?;
            if self.place == DropPlace::Here && self.alike > 0 {
                write!(f, " ({} of them off as well)", self.alike)?;
            }
        }
        if let Some(output) = &self.first_off {
            write!(f, "; the first output that is off is {output}")?;
        }
        f.write_str(match self.is_rounding() {
            true => {
                "; rounding modes alone may do that, so the tolerance may be stricter than the NPU's arithmetic"
            }
            false => "; rounding modes alone keep it above 0.98",
        })
    }
}

impl OutputDrop {
    /// Whether rounding modes explain the difference, although it is beyond the owner's tolerance.
    fn is_rounding(&self) -> bool {
        self.cosine
            .is_some_and(|cosine| cosine >= epwatch_proto::ROUNDING_COSINE)
    }
}

/// Says how far two outputs are apart.
fn apart(cosine: Option<f64>, max_abs: Option<f64>) -> String {
    let cosine = cosine.map(|cosine| format!("a cosine of {cosine:.4}"));
    let difference = max_abs.map(|value| format!("a largest difference of {}", difference(value)));
    let both: Vec<String> = cosine.into_iter().chain(difference).collect();
    match both.is_empty() {
        true => "an unknown distance".to_owned(),
        false => both.join(" and "),
    }
}
