//! Types of calls and answers that are also in reports.
//!
//! They are the SDK's own: the types of `epwatch-proto`, which is the wire's contract, are in no call that this
//! documentation shows. Structs are built by their setters, so that a later version can add fields.

mod device;
mod mirrored;
mod reason;
mod session;
mod setters;

pub use self::{
    device::{Device, Runtime},
    mirrored::{
        ContextKind, DeviceType, Outcome, PowerSave, SelectionPolicy, StartPhase, Thermal,
        UploadFailureKind,
    },
    reason::ReasonCode,
    session::{ModelManifest, SelfTest, SessionOptions, SessionUid},
};
pub use crate::placement::Placement;
