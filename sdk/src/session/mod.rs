//! Session types that a host holds. They reach the SDK through `shared.rs` only. If observing fails for any reason, the
//! host still gets its session.

mod attached;
mod observation;
mod observed;
mod request;
mod run;
mod shape_key;
mod simulated;

pub use attached::{AttachRequest, AttachedSession, HostAssignment};
pub use observed::ObservedSession;
pub use request::SessionRequest;
pub use simulated::SimulatedSession;
