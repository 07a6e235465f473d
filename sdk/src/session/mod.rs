//! Session types that a host holds. They reach the SDK through `shared.rs` only. If observing fails for any reason, the
//! host still gets its session.

mod attached;
mod observation;
#[cfg(feature = "ort")]
mod observed;
mod request;
#[cfg(any(feature = "ort", feature = "simulation"))]
mod run;
#[cfg_attr(
    not(feature = "ort"),
    expect(dead_code, reason = "only `ort`'s inputs have shapes here")
)]
mod shape_key;
#[cfg(feature = "simulation")]
mod simulated;

pub use attached::{AttachRequest, AttachedSession, HostAssignment, HostPlacement};
#[cfg(feature = "ort")]
pub use observed::{ObservedRun, ObservedSession};
pub use request::SessionRequest;
#[cfg(feature = "simulation")]
pub use simulated::SimulatedSession;
