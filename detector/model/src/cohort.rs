//! Keys of models and cohorts, the groups of devices that are judged together.
//!
//! A cohort is a model version on a chipset, for one accelerator: the chipset's NPU, or the one in brackets
//! (`SM8650 [CUDA]`, `epwatch_proto::accelerator`). Below it are its firmwares. A firmware with too few devices is
//! judged as part of its chipset, never dropped.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a device in the store: 128 bits of a hash. Never logged, never shown.
pub type Installation = [u8; 16];

/// An app's id and environment.
pub type AppEnvironment = (String, String);

/// A version of a model on a chipset.
pub type VersionOnChipset = (ModelKey, String, String);

/// A model of an app in one environment. Versions are compared within it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelKey {
    /// App id of the app key that signed the reports.
    pub app_id: String,
    /// For example `production`.
    pub environment: String,
    /// The model's name in the app.
    pub model_id: String,
}

impl ModelKey {
    /// Returns the key of a model by its app, environment and name.
    #[must_use]
    pub fn of((app_id, environment): (&str, &str), model_id: &str) -> Self {
        ModelKey {
            app_id: app_id.to_owned(),
            environment: environment.to_owned(),
            model_id: model_id.to_owned(),
        }
    }

    /// Returns the app's id and environment.
    #[must_use]
    pub fn app(&self) -> (&str, &str) {
        (&self.app_id, &self.environment)
    }
}

/// Devices that run one model version on one chipset, all firmwares or one of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CohortKey {
    /// The model in its app and environment.
    pub model: ModelKey,
    /// The model version as the app names it.
    pub model_version: String,
    /// Normalised chipset, for example `SM8650`, with the accelerator in brackets if it is not the chipset's NPU.
    pub chipset: String,
    /// One firmware (vendor fingerprint hash), or all firmwares of the chipset.
    pub firmware: Option<String>,
}

impl CohortKey {
    /// Returns a text about the NPU as a text about the accelerator that the cohort's sessions asked for.
    #[must_use]
    pub fn in_words(&self, text: &str) -> String {
        let accelerator = epwatch_proto::accelerator::of_cohort(&self.chipset);
        accelerator.in_words(text).into_owned()
    }

    /// Returns the cohort of a firmware's chipset. `None` for a whole chipset: versions and chipsets are compared with
    /// each other and never added.
    #[must_use]
    pub fn parent(&self) -> Option<CohortKey> {
        self.firmware.as_ref()?;
        Some(CohortKey {
            firmware: None,
            ..self.clone()
        })
    }
}

/// For people: `detector 2.0.0 on SM8635`.
impl fmt::Display for CohortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CohortKey {
            model,
            model_version,
            chipset,
            ..
        } = self;
        write!(f, "{} {model_version} on {chipset}", model.model_id)?;
        match &self.firmware {
            Some(firmware) => write!(f, ", firmware {firmware}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firmware_is_pooled_into_its_chipset_and_no_further() {
        let model = ModelKey {
            app_id: "camera".into(),
            environment: "production".into(),
            model_id: "segmenter".into(),
        };
        let firmware = CohortKey {
            model,
            model_version: "2.0.0".into(),
            chipset: "SM8635".into(),
            firmware: Some("f1".into()),
        };
        let chipset = firmware.parent().unwrap();
        assert_eq!(chipset.firmware, None);
        assert_eq!(chipset.parent(), None);
        assert_eq!(
            (firmware.to_string(), chipset.to_string()),
            (
                "segmenter 2.0.0 on SM8635, firmware f1".into(),
                "segmenter 2.0.0 on SM8635".into()
            )
        );
    }
}
