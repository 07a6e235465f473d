//! Conditions of a run. Runs of different strata are never added up on the device.

use serde::Serialize;

use crate::{
    message::{Enum, Text, message},
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// Whether a run is one of the session's first.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum Phase: Phase {
        Cold = Cold "cold",
        Warm = Warm "warm",
    }
}

wire_enum! {
    /// Android's thermal status.
    #[expect(missing_docs, reason = "Android documents the values")]
    pub enum Thermal: Thermal {
        Unknown = Unknown "unknown",
        None = None "none",
        Light = Light "light",
        Moderate = Moderate "moderate",
        Severe = Severe "severe",
        Critical = Critical "critical",
        Emergency = Emergency "emergency",
        Shutdown = Shutdown "shutdown",
    }
}

wire_enum! {
    /// Whether the platform saves power.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum PowerSave: PowerSave {
        Unknown = Unknown "unknown",
        Off = Off "off",
        On = On "on",
    }
}

wire_enum! {
    /// Age of the session when the run began.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum SessionAge: SessionAge {
        Unknown = Unknown "unknown",
        Under1Min = Under1Min "under_1_min",
        From1To10Min = SessionAge1To10Min "1_to_10_min",
        Over10Min = Over10Min "over_10_min",
    }
}

/// `shape_key` of a model that admits one shape only.
pub const STATIC_SHAPE: &str = "static";
/// `shape_key` of all shapes beyond the cap on keys.
pub const OTHER_SHAPE: &str = "other";
/// Longest `shape_key`, in bytes.
pub const MAX_SHAPE_KEY_BYTES: usize = 128;
/// Longest `performance_mode`, in bytes.
pub const MAX_PERFORMANCE_MODE_BYTES: usize = 32;

/// The conditions of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Stratum {
    pub phase: Phase,
    pub thermal: Thermal,
    pub power_save: PowerSave,
    pub performance_mode: String,
    /// Input shapes, [`STATIC_SHAPE`] or [`OTHER_SHAPE`]; empty if they are unknown.
    pub shape_key: String,
    pub session_age: SessionAge,
}

impl Stratum {
    /// Returns whether the runs vote: warm, at most lightly hot, and without power save. An unknown thermal state or
    /// power save counts as clean, because devices that cannot report them are judged too.
    pub fn is_clean(&self) -> bool {
        let cool = matches!(
            self.thermal,
            Thermal::Unknown | Thermal::None | Thermal::Light
        );
        self.phase == Phase::Warm && cool && self.power_save != PowerSave::On
    }
}

message! {
    mod stratum_fields: Stratum = v1::Stratum {
        1 phase: Enum<Phase>,
        2 thermal: Enum<Thermal>,
        3 power_save: Enum<PowerSave>,
        4 performance_mode: Text<MAX_PERFORMANCE_MODE_BYTES>,
        5 shape_key: Text<MAX_SHAPE_KEY_BYTES>,
        6 session_age: Enum<SessionAge>,
    }
    keeps StratumKey<'a> = |seen| Some(StratumKey {
        enums: [seen.phase, seen.thermal, seen.power_save, seen.session_age],
        performance_mode: seen.performance_mode,
        shape_key: seen.shape_key,
    });
}

/// A stratum's fields as the wire has them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct StratumKey<'a> {
    enums: [i32; 4],
    performance_mode: &'a [u8],
    shape_key: &'a [u8],
}
