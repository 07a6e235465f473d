//! What held while a run was measured. Runs of different strata are never added up on the device.

use serde::Serialize;

use crate::{
    message::{Enum, Text, message},
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// Where in the session's life a run lies.
    pub enum Phase: Phase {
        /// The session's first runs.
        Cold = Cold "cold",
        /// Those after.
        Warm = Warm "warm",
    }
}

wire_enum! {
    /// Android's thermal status.
    pub enum Thermal: Thermal {
        /// Not known, which is not "none".
        Unknown = Unknown "unknown",
        /// No throttling.
        None = None "none",
        /// Not noticed by users.
        Light = Light "light",
        /// Noticed a little.
        Moderate = Moderate "moderate",
        /// Noticed a lot.
        Severe = Severe "severe",
        /// Everything is reduced.
        Critical = Critical "critical",
        /// Components are shut down.
        Emergency = Emergency "emergency",
        /// The device is about to go off.
        Shutdown = Shutdown "shutdown",
    }
}

wire_enum! {
    /// Whether the platform saves power.
    pub enum PowerSave: PowerSave {
        /// Not known.
        Unknown = Unknown "unknown",
        /// No.
        Off = Off "off",
        /// Yes.
        On = On "on",
    }
}

wire_enum! {
    /// Age of the session when the run began.
    pub enum SessionAge: SessionAge {
        /// Not known.
        Unknown = Unknown "unknown",
        /// Under one minute.
        Under1Min = Under1Min "under_1_min",
        /// One to ten minutes.
        From1To10Min = SessionAge1To10Min "1_to_10_min",
        /// Over ten minutes.
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

/// What held while a run was measured.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Stratum {
    /// Cold or warm.
    pub phase: Phase,
    /// Thermal status.
    pub thermal: Thermal,
    /// Power save.
    pub power_save: PowerSave,
    /// As the host says it; empty: unknown.
    pub performance_mode: String,
    /// Input shapes, [`STATIC_SHAPE`], [`OTHER_SHAPE`]; empty: unknown.
    pub shape_key: String,
    /// Age of the session.
    pub session_age: SessionAge,
}

impl Stratum {
    /// Warm runs, thermal none or light, no power save: the only ones that vote. "Unknown" is
    /// not clean evidence of anything, but devices that cannot report are judged too, so unknown
    /// thermal state and power save count as clean.
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
