//! The wire contract between devices and the collector, parsed.
//!
//! In the path `run -> histogram -> report -> spool -> upload -> ingest -> ...` this crate is the form of the
//! data between stages. It takes bytes from devices, files and the network. It returns types that hold only
//! what the contract allows, or a [`ParseError`] that names the field. The messages themselves are [`v1`],
//! generated from `epwatch/v1/*.proto`, which defines names, units and bounds; they are not checked. Every
//! parsed type converts back, so a sender builds parsed types and encodes them.
//!
//! - report: [`Report`], with [`Session`], [`LatencySeries`], [`Placement`], [`Device`] and so on;
//! - upload: [`UploadRequest`], [`UploadResponse`], [`Outcome`];
//! - terms that all crates share: [`accelerator`], [`chipset`], [`fingerprint`], [`histogram`], [`manifest`],
//!   [`ReasonCode`];
//! - files: [`recorded`].
//!
//! It never opens a file or a connection, reads no clock and verifies no signature. It never allocates by an
//! announced length: memory is bounded by the bytes that arrived.

pub mod accelerator;
#[cfg(feature = "client")]
mod broken_connection;
pub mod chipset;
#[cfg(any(feature = "client", feature = "server"))]
mod codec;
mod compiled_for;
pub mod device;
pub mod directive;
pub mod ep_device;
mod error;
pub mod event_time;
pub mod failure;
pub mod fingerprint;
pub mod health;
pub mod histogram;
mod ids;
pub mod latency;
pub mod manifest;
mod manifest_wire;
mod market_names;
mod message;
mod other_chipsets;
mod outcome;
pub mod placement;
mod reason;
pub mod recorded;
pub mod report;
#[cfg(feature = "samples")]
pub mod samples;
pub mod session;
pub mod stratum;
mod text;
pub mod upload;
mod upload_wire;
mod validate;
pub mod wire;
mod wire_enum;

pub use accelerator::{Accelerator, Asked};
#[cfg(feature = "client")]
pub use broken_connection::{is_connection_broken, tls_hint};
pub use chipset::Chipset;
pub use compiled_for::QnnCompiledFor;
pub use device::{App, ContextKind, Device, EpBackend, EpLinkage, RamClass, Runtime, Sdk};
pub use directive::{Directive, DirectiveAction, DirectiveScope, SignedDirective};
pub use ep_device::{DeviceType, EpDevice};
pub use error::{MAX_DETAIL_BYTES, ParseError};
pub use failure::{ROUNDING_COSINE, RunErrors, SelfTest, StartFailure, StartPhase};
pub use fingerprint::Fingerprint;
pub use health::{DirectiveRefusal, DropReason, Dropped, SdkHealth, UploadFailureKind};
pub use histogram::{HistScheme, SparseHistogram};
pub use ids::{InstallationId, ModelHash, ReportKey, Sequence, SessionUid, StreamId};
pub use latency::{
    BaselineAbsence, BaselineKind, Baselines, ExceedCounts, LatencySeries, SelfBaseline,
};
pub use manifest::{Attribution, ModelManifest, NodeMacs, SideCar};
pub use message::MAX_UNIX_MS;
pub use outcome::Outcome;
pub use placement::{CpuNode, EpShare, GraphKind, Placement, PlacementSource};
pub use reason::{ReasonCode, Sign, SignScope, node_sign, signs_of, whole_sign};
pub use recorded::RecordedReport;
pub use report::{EndedStream, Report};
pub use session::{Model, SelectionPolicy, Session, SessionOptions, asked_for};
pub use stratum::{Phase, PowerSave, SessionAge, Stratum, Thermal};
pub use text::{clipped, error_chain, hex, push_visible, unhex, visible};
pub use upload::{Attestation, ReportResult, SendClock, UploadRequest, UploadResponse};
pub use validate::{FastValidator, ValidReport};

/// The unchecked messages, generated from `epwatch/v1/*.proto` by `just generate`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
pub mod v1 {
    pub use crate::manifest_wire::BoundedManifest as ModelManifest;
    pub use crate::upload_wire::BoundedUploadRequest as UploadRequest;

    include!("generated/v1.rs");
}
