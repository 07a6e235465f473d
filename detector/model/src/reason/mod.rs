//! The reasons of a verdict, with the numbers that their sentences name. Stored with an incident, so the names
//! of variants and fields are a contract.

mod output_drop;
mod text;

use epwatch_proto::SelectionPolicy;
use serde::{Deserialize, Serialize};

use crate::class::TOTAL_FALLBACK_BELOW;
use crate::late_runs::LateRuns;
use crate::numbers::{counted, latency, percent};
use crate::placement::WorkUnit;
use crate::reference::{Origin, SpeedReference};
use crate::signal::SignalId;

pub use output_drop::{DropPlace, OutputDrop};

/// Whether more than a tenth of the installations are new, which is rare in one window of a real fleet.
#[must_use]
pub fn many_are_new(proven: u64, devices: u64) -> bool {
    10 * proven < 9 * devices
}

/// The limit beyond which runs are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlowLimit {
    /// Twice the device's own earlier p95.
    #[default]
    TwiceP95,
    /// 1.4 times the device's own earlier p95, with almost no runs slightly below.
    Apart,
    /// 1.6 times the device's own earlier median.
    Median,
}

impl SlowLimit {
    /// Returns the limit of an intermittent signal.
    #[must_use]
    pub fn of(signal: SignalId) -> Self {
        match signal {
            SignalId::NearTail => Self::Apart,
            SignalId::Moved => Self::Median,
            _ => Self::TwiceP95,
        }
    }
}

/// Returns what the sessions of an unknown EP asked for.
fn unknown_choice(ep: &str) -> String {
    match SelectionPolicy::of_request(ep) {
        None => format!("the sessions ask for the EP {ep}, which epwatch does not know"),
        Some(policy) => format!(
            "ONNX Runtime chose the devices of these sessions by the policy {policy}, and its choice is not known"
        ),
    }
}

/// The firmware that a certificate was measured on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertifiedFirmware {
    /// Its hash, as reports have it.
    pub firmware: String,
    /// Whether the devices that are compared with it have the same firmware.
    pub is_theirs: bool,
}

/// One reason of a verdict. It is not an error: `thiserror` only derives `Display` from the sentences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the sentence above each variant says what such a field is"
)]
pub enum Reason {
    /// Work moved to the CPU.
    #[error(
        "{hits} of {devices} devices run more on the CPU than {origin}{}",
        text::shares(.npu_share, .reference_npu_share, *.unit)
    )]
    Placement {
        /// Devices whose work moved.
        hits: u64,
        devices: u64,
        /// Share of the work on the NPU on the devices hit, in [0, 1].
        npu_share: Option<f64>,
        /// Share of the work on the NPU in the reference.
        reference_npu_share: Option<f64>,
        /// The unit of the shares.
        unit: WorkUnit,
        /// The origin of the reference.
        origin: Origin,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// The devices with a worse placement are slower.
    #[error(
        "{} are slower: median latency {} against {} of {reference}",
        text::slower_devices(*.slower, *.compared, *.hits),
        latency(*.p50_us),
        latency(*.reference_p50_us)
    )]
    Slower {
        slower: u64,
        /// Devices with a worse placement.
        hits: u64,
        /// Devices among these with enough runs to compare.
        compared: u64,
        /// Their median p50, in microseconds.
        p50_us: f64,
        /// Median p50 of the reference.
        reference_p50_us: f64,
        /// The kind of reference.
        reference: SpeedReference,
    },
    /// Sessions of a device go back and forth between placements.
    #[error(
        "on {devices} of these {hits} devices sessions go back and forth between the two placements, so some \
         sessions fall back, not the devices"
    )]
    Alternating {
        devices: u64,
        /// Devices with a worse placement.
        hits: u64,
    },
    /// Work moved to the CPU, and the devices are not slower.
    #[error("{}", text::not_slower(*.slower, *.compared))]
    NotSlower {
        slower: u64,
        /// Devices with a worse placement and enough runs to compare.
        compared: u64,
    },
    /// Less work is on the NPU than certified.
    #[error(
        "certified by {}{}{}; {hits} of {devices} devices run it otherwise{}",
        text::certifier(.certified_by),
        text::certified_share(.certified_npu_share, *.unit),
        text::certified_firmware(.firmware),
        text::share_of_hits(.npu_share, *.unit)
    )]
    Certificate {
        /// The certifier, for example a CI run.
        certified_by: String,
        /// The firmware that it was measured on; `None` if the certificate names none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        firmware: Option<CertifiedFirmware>,
        /// Devices that differ.
        hits: u64,
        devices: u64,
        /// Share of the work on the NPU on the devices hit, in [0, 1].
        npu_share: Option<f64>,
        /// Share of the work on the NPU in the certificate.
        certified_npu_share: Option<f64>,
        /// The unit of the shares.
        unit: WorkUnit,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// No certificate is for the devices' runtime.
    #[error(
        "{} certified it with the runtime {certified}, and {devices} devices have another one ({}): certify this \
         runtime too, so that they can be compared",
        text::certifier(.certified_by),
        .runtimes.join(", ")
    )]
    UncertifiedRuntime {
        /// The latest certifier.
        certified_by: String,
        /// The certificate's ORT and EP version.
        certified: String,
        /// ORT and EP versions of the devices.
        runtimes: Vec<String>,
        devices: u64,
    },
    /// Devices slower than their own past.
    #[error(
        "{hits} of {devices} devices take at least {beyond} times as long as they did themselves before"
    )]
    Shift {
        /// Devices beyond the ratio.
        hits: u64,
        /// Devices with a baseline.
        devices: u64,
        /// The ratio of p10.
        beyond: f64,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// The median device is slower than its own past.
    #[error(
        "the median of {devices} devices takes {ratio:.2} times as long as before, at least {at_least:.2}"
    )]
    MedianSlower {
        /// Median ratio of p10.
        ratio: f64,
        /// Its lower bound.
        at_least: f64,
        /// Devices with a baseline.
        devices: u64,
    },
    /// Devices slow in some of their runs.
    #[error(
        "{hits} of {devices} devices are slow in some of their runs and as fast as before in the others{}",
        text::slow_runs(*.slow_share, *.limit, *.shape_is_known)
    )]
    Intermittent {
        hits: u64,
        /// Devices with a baseline.
        devices: u64,
        /// Median over the devices hit of the share of runs beyond the limit.
        slow_share: Option<f64>,
        /// The limit of that signal.
        #[serde(default)]
        limit: SlowLimit,
        /// Whether their input shape is known, or other chipsets show that it is not the reason.
        shape_is_known: bool,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// The whole cohort moved, by less than 1.6 x.
    #[error(
        "the median of the {devices} devices compared moved to {ratio:.2} times its earlier latency: {}",
        text::heavier(.new_runtimes)
    )]
    CohortMoved {
        /// Median ratio of p10.
        ratio: f64,
        /// Devices with a baseline.
        devices: u64,
        /// Their runtimes, if almost all have one that the version before never had.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        new_runtimes: Vec<String>,
    },
    /// The previous version did or did not slow down as well.
    #[error(
        "the previous version in the same window slowed down {} of its devices",
        text::on_share(*.share, *.slowed)
    )]
    PreviousVersionControl {
        /// Share of its devices beyond the same ratio, in [0, 1].
        share: f64,
        /// Whether it slowed down as much.
        slowed: bool,
    },
    /// Other models on the devices hit did or did not slow down.
    #[error("other models slowed down {} of the devices hit", text::on_share(*.share, *.slowed))]
    PeerControl {
        /// Share of the devices hit on which other models slowed down, in [0, 1].
        share: f64,
        /// Whether the share is most of the devices.
        slowed: bool,
    },
    /// Another model or version on the chipset slowed down as well.
    #[error(
        "another model or version on this chipset slowed down as well in the same window, on {} of its devices",
        percent(*.share)
    )]
    CohortControl {
        /// Share of its devices that slowed down, in [0, 1].
        share: f64,
    },
    /// Another model or version on the chipset may have slowed down as well.
    #[error(
        "another model or version on this chipset slowed down on {} of its devices, too few to tell the chipset from \
         this model, so it wakes no one",
        percent(*.share)
    )]
    CohortUnsure {
        /// Share of its devices that slowed down, in [0, 1].
        share: f64,
    },
    /// The devices hit report no thermal state.
    #[error(
        "{} of the devices hit report no thermal state, and {} of those compared: heat slows them down unseen",
        percent(*.of_hit),
        percent(*.of_all)
    )]
    UnseenHeat {
        /// Share of the devices hit, in [0, 1].
        of_hit: f64,
        /// Share of the devices of the cohort, in [0, 1].
        of_all: f64,
    },
    /// The same version on other chipsets shows the same effect.
    #[error(
        "{} the same with this version in the same window, {}",
        text::other_chipsets(*.chipsets),
        text::same_effect(*.share, *.ratio, .new_runtimes)
    )]
    Everywhere {
        chipsets: u64,
        /// Share of their devices hit in the same way, in [0, 1].
        share: f64,
        /// Their median ratio of p10, if whole cohorts moved.
        ratio: Option<f64>,
        /// Runtimes of the cohort's devices, if almost all have one that the version before never had.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        new_runtimes: Vec<String>,
    },
    /// The same version on other chipsets shows less than half of the effect.
    #[error(
        "{} it {} of their devices, and inputs that are not known come with the app to all chipsets",
        text::other_chipsets(*.chipsets),
        text::on_share(*.share, false)
    )]
    Spared {
        chipsets: u64,
        /// Share of their devices hit in the same way, in [0, 1].
        share: f64,
    },
    /// Devices with one firmware are hit far more often than others of the chipset.
    #[error(
        "it comes with a firmware: {hits} of {devices} devices on {firmware} are hit, and {other_hits} of \
         {other_devices} on others of this chipset"
    )]
    Firmware {
        firmware: String,
        /// Its devices hit.
        hits: u64,
        devices: u64,
        /// Devices of other firmwares that are hit.
        other_hits: u64,
        /// Devices of other firmwares.
        other_devices: u64,
    },
    /// Devices with one runtime are slower with all models far more often than others of the chipset.
    #[error(
        "it comes with a runtime: {hits} of {devices} devices on {runtime} are hit, and {other_hits} of \
         {other_devices} on others of this chipset"
    )]
    CommonRuntime {
        /// ORT and EP version.
        runtime: String,
        /// Its devices hit.
        hits: u64,
        devices: u64,
        /// Devices of other runtimes that are hit.
        other_hits: u64,
        /// Devices of other runtimes.
        other_devices: u64,
    },
    /// Devices of one make are slower than the chipset's others in the same window.
    #[error(
        "{hits} of {devices} devices of {} take {ratio:.1} times as long as the {others} others of this chipset, in the \
         same window",
        text::make(.device_models, .firmware.as_deref())
    )]
    SlowerMake {
        /// Device models, in order; empty if only a firmware stands out.
        device_models: Vec<String>,
        /// The firmware that all of them have and no other device.
        firmware: Option<String>,
        /// Its devices that are slower.
        hits: u64,
        devices: u64,
        /// Devices that they are compared with.
        others: u64,
        /// Ratio of the medians of p10.
        ratio: f64,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// The previous version moved as well.
    #[error(
        "the previous version moved as well in the same window, to {ratio:.2} times its earlier latency"
    )]
    PreviousMoved {
        /// Its median ratio of p10.
        ratio: f64,
    },
    /// Other models on the devices moved as well.
    #[error(
        "other models of these devices moved as well in the same window, to {ratio:.2} times their earlier latency"
    )]
    PeersMoved {
        /// Median over the devices of a ratio of p10: on each device, of the other model that moved least.
        ratio: f64,
    },
    /// Something other than the model slowed down as well, for longer than load lasts.
    #[error("it has lasted for {windows} windows that share no reports, and heat and load end")]
    LoadLasts {
        /// Number of windows that it has lasted.
        windows: u32,
    },
    /// No other version, model or chipset could be compared in the same window.
    #[error(
        "no other version, model or chipset ran in the same window to compare with, and load slows down by less than \
         2 times: it pages once a second window shows it"
    )]
    NoControl,
    /// The devices hit have another runtime than the reference, which may only count nodes or MACs differently.
    #[error(
        "the devices hit have another runtime than the reference ({}), which may only count differently",
        .runtimes.join(", ")
    )]
    NewRuntime {
        /// ORT and EP versions of the devices hit.
        runtimes: Vec<String>,
    },
    /// Work moved to the CPU on devices that all have another runtime than the reference.
    #[error(
        "all of them run it with another runtime than the reference ({}), which may be why",
        .runtimes.join(", ")
    )]
    OnRuntime {
        /// ORT and EP versions.
        runtimes: Vec<String>,
    },
    /// Devices are slow with one input shape, and as fast as before with their others.
    #[error(
        "it comes with the input shape {shape}: {hits} of the {devices} devices hit are slow with it, and {others} with \
         another; {} of their runs have it",
        percent(*.run_share)
    )]
    InputShape {
        shape: String,
        /// Devices hit that are slow with this shape.
        hits: u64,
        /// Devices hit.
        devices: u64,
        /// Devices hit that are slow with another shape.
        others: u64,
        /// Share of their clean runs with the shape, in [0, 1].
        run_share: f64,
    },
    /// The NPU's back end could not be set up.
    #[error("the NPU's back end gave {code} on {devices} of the devices hit")]
    Backend {
        /// The contract's reason code.
        code: String,
        /// Devices hit with this code.
        devices: u64,
    },
    /// The NPU does not start.
    #[error(
        "the NPU does not start on {hits} of {devices} devices{}{}{}",
        text::without_session(*.failed, *.hits),
        text::codes(.codes),
        if *.is_unheard_of { text::UNHEARD_OF } else { "" }
    )]
    NpuStart {
        /// Devices where the NPU does not start.
        hits: u64,
        devices: u64,
        /// Devices hit on which a session could not be created at all.
        failed: u64,
        /// Reason codes with their devices, commonest first.
        codes: Vec<(String, u64)>,
        /// Whether the NPU was never seen to start on this chipset.
        is_unheard_of: bool,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// The compiled model was made for another chipset or runtime, and its sessions exist.
    #[error(
        "on {hits} of {devices} devices the compiled model was made for another chipset or runtime than theirs: the NPU \
         takes it, may be slower with it, and may refuse it after an update"
    )]
    CompiledForAnother {
        /// Devices with such a session.
        hits: u64,
        devices: u64,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// Outputs differ by more than the tolerance.
    #[error(
        "on {hits} of {devices} tested devices the NPU's output is off by more than accepted: at the median the \
         largest difference from the same device's CPU is {}, accepted is {}{}",
        crate::numbers::difference(*.max_abs),
        crate::numbers::difference(*.tolerance),
        text::similarity(*.cosine, *.top1_share)
    )]
    WrongOutputs {
        /// Devices beyond the tolerance.
        hits: u64,
        devices: u64,
        /// Median of the largest difference between NPU and CPU.
        max_abs: f64,
        /// The accepted difference.
        tolerance: f64,
        /// Median cosine of the two outputs, -1 to 1.
        cosine: Option<f64>,
        /// Share of the devices hit with the same largest element, in [0, 1].
        top1_share: Option<f64>,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// Outputs differ between devices.
    #[error(
        "the same input gives {outputs} different outputs on {devices} tested devices, and {hits} of them leave \
         the commonest one: {}{}",
        text::what_differs(*.is_rounding),
        text::firmware_of_hits(.firmware.as_deref())
    )]
    DifferentOutputs {
        /// Devices whose output is not the commonest.
        hits: u64,
        devices: u64,
        outputs: u64,
        /// The firmware of all devices hit and of no others.
        firmware: Option<String>,
        /// Whether all outputs differ from the CPU's no more than rounding modes explain.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_rounding: bool,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// Outputs are off by more than rounding, on all chipsets alike or on this one.
    #[error("{drop}")]
    OutputDrop {
        /// How far the outputs are off here and on other chipsets.
        drop: OutputDrop,
    },
    /// Runs vary more than before.
    #[error(
        "on {hits} of {devices} devices latency varies at least twice as much as it did there before{}",
        text::cvs(*.cv, *.earlier_cv)
    )]
    Varies {
        /// Devices whose runs vary more.
        hits: u64,
        /// Devices with a baseline.
        devices: u64,
        /// Median coefficient of variation of the devices hit.
        cv: Option<f64>,
        /// Median of their earlier coefficients of variation.
        earlier_cv: Option<f64>,
        /// Chance of so many hits in a healthy cohort.
        p: f64,
    },
    /// The previous version varies more as well.
    #[error(
        "the previous version varies more as well in the same window, on {} of its devices",
        percent(*.share)
    )]
    PreviousVaries {
        /// Share of its devices, in [0, 1].
        share: f64,
    },
    /// A CV rule of the config fired.
    #[error(
        "your rule {name}: coefficient of variation {cv:.3}{}; such rules fire on healthy devices too",
        text::limits(*.limit, *.baseline)
    )]
    CvRule {
        name: String,
        /// Coefficient of variation of all runs.
        cv: f64,
        /// The limit, if the rule has one.
        limit: Option<f64>,
        /// The coefficient in earlier windows, if the rule compares with it.
        baseline: Option<f64>,
    },
    /// Far fewer devices reported than usual.
    #[error(
        "only {} reported on this chipset; the median of {windows} earlier windows is {usual}",
        counted(*.devices, "device")
    )]
    FewReporting {
        /// Devices that reported, on this chipset.
        devices: u64,
        /// Median of earlier windows.
        usual: u64,
        /// Number of the earlier windows.
        windows: u64,
    },
    /// The installations of a version are gone, and about as many new installations appeared in its app.
    #[error(
        "{devices} of the usual {usual} installations of this version reported in the window, and {new} that are new to its \
         app: the devices report, under new installation ids (a reinstall, or the app's data were cleared)"
    )]
    Reinstalled {
        /// Installations of the version that reported, under any version.
        devices: u64,
        /// Installations that usually report.
        usual: u64,
        /// Installations of the app that no earlier window had.
        new: u64,
    },
    /// An app or a version has almost no devices.
    #[error(
        "{}; {usual} is usual, by the median of earlier windows and a week ago",
        text::quiet(*.devices, *.of_version)
    )]
    Quiet {
        /// Devices that reported. For a version, its devices that reported under any version.
        devices: u64,
        /// Devices that usually report.
        usual: u64,
        of_version: bool,
    },
    /// Far more devices reported than usual, and the surplus could explain all hits.
    #[error(
        "{devices} devices reported on this chipset, where the median of {windows} earlier windows is {usual}; no \
         more are hit than came to those, so they may be made up"
    )]
    Crowd {
        /// Devices that reported, on this chipset.
        devices: u64,
        /// Median of earlier windows.
        usual: u64,
        /// Number of the earlier windows.
        windows: u64,
    },
    /// More new installations than the app usually has; they do not vote.
    #[error(
        "{devices} installations are new, far more than this app usually has, and do not vote: reports may be \
         forged"
    )]
    Flood {
        /// Installations without a vote.
        devices: u64,
    },
    /// A directive took devices off the NPU; they do not vote.
    #[error("{devices} devices do not vote: a directive took them off the NPU")]
    Directed { devices: u64 },
    /// The finding does not hold on the installations that were known before the window.
    #[error(
        "it does not hold on the {proven} of {devices} installations that were known before this window, so it {}",
        text::doubt(*.proven, *.devices, *.flood)
    )]
    NewcomersOnly {
        /// Installations known before the window.
        proven: u64,
        /// Devices that vote.
        devices: u64,
        /// Whether more installations than usual are new.
        flood: bool,
    },
    /// The finding does not hold without the networks that bring most devices of a public key.
    #[error(
        "it does not hold without {left_out} of {devices} devices, which share the networks that bring most of them \
         or are too new: a key that ships in an app is public, so they may be made up"
    )]
    FewNetworks {
        /// Devices left out.
        left_out: u64,
        /// Devices that vote.
        devices: u64,
    },
    /// No device of the app has been known long enough to confirm the others.
    #[error(
        "this app is new: no device is known for ten days yet, so fewer networks than later could make this up"
    )]
    NewApp,
    /// The network of most devices is unknown, so they are not weighed.
    #[error(
        "{unweighed} of {devices} devices come from private addresses, so networks do not weigh them: name the proxy \
         in `collector.new_installations.trusted_proxies`"
    )]
    NotWeighed {
        /// Devices of public keys without a network.
        unweighed: u64,
        /// Devices that vote.
        devices: u64,
    },
    /// The sessions ask for an EP that is not in the table of accelerators, or for a policy's choice.
    #[error(
        "{}: where their nodes should run is not known, so nothing is judged",
        unknown_choice(ep)
    )]
    UnknownEp {
        /// The name under which the app registered the EP, or `policy:` with a policy's name.
        ep: String,
    },
    /// Too few devices are hit for a page.
    #[error("{} of the devices are hit, too few to wake anyone", percent(*.share))]
    FewHit {
        /// Share of the devices hit, in [0, 1].
        share: f64,
    },
    /// Too few devices in the window.
    #[error(
        "{} in the window: needs about {} to see a 2x change",
        counted(*.devices, "device"),
        counted(.needed.saturating_sub(*.devices), "more device")
    )]
    TooFewDevices {
        devices: u64,
        /// Devices needed to detect a slow-down by 2 on all of them.
        needed: u64,
    },
    /// There are not enough references of any kind.
    #[error(
        "{}: {comparable_placements} devices have a placement with a reference and {comparable_pasts} know their \
         past on another version, firmware or runtime; {needed} of either are needed",
        text::nothing_to_compare(.previous_version.as_deref())
    )]
    NoReference {
        /// The version before, if there is one.
        previous_version: Option<String>,
        /// Devices whose placement has a reference.
        comparable_placements: u64,
        /// Devices with a baseline of their own on another version, firmware or runtime.
        comparable_pasts: u64,
        /// Devices that either kind needs.
        needed: u64,
    },
    /// The sessions request the NPU, which has almost none of the work. No reference shows how much it should have, or
    /// the config names the model.
    #[error(
        "the model asks for the NPU, which has under {} of the work on {off_npu} of the {devices} devices whose \
         placement could be read; {}",
        percent(TOTAL_FALLBACK_BELOW),
        text::expectation(*.is_expected)
    )]
    HardlyOnNpu {
        /// Devices where the NPU has under 5 % of the work.
        off_npu: u64,
        /// Devices with a readable placement.
        devices: u64,
        /// Whether the config names the model as one that belongs on the NPU.
        #[serde(default)]
        is_expected: bool,
    },
    /// The version before has an open incident, so another version is the reference.
    #[error("{}", text::passed_over(.versions, .compared_with.as_deref(), *.is_at_fault))]
    PassedOver {
        /// Versions with an open incident on the chipset, the latest first.
        versions: Vec<String>,
        /// The version that is the reference; `None` if all versions before have an incident.
        compared_with: Option<String>,
        /// Whether this version has a finding too.
        is_at_fault: bool,
    },
    /// The devices were faster with this version before.
    #[error(
        "{devices} of them were as fast as that with the same version in its earlier windows, when it was faster than the \
         version before: the version did not change"
    )]
    SameVersion {
        /// Devices that are compared with those windows.
        devices: u64,
    },
    /// Runs beyond the model's deadline.
    #[error("{}", text::late(.place, .late))]
    Late {
        /// The chipset, or a firmware of it.
        place: String,
        late: LateRuns,
    },
    /// Nothing changed since earlier windows of the version, which may have been wrong too.
    #[error("{}", text::as_before(*.devices, *.with_slow_runs, .before.as_deref()))]
    AsBefore {
        /// Devices compared with those windows.
        devices: u64,
        /// Number of these devices whose slow runs were compared too.
        #[serde(default)]
        with_slow_runs: u64,
        /// The version with an open incident that the devices came back from, if those windows were before it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
    },
}
