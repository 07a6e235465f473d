//! The truth about a family: its fault, or the confounder that looks like one.

/// The truth about a family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Truth {
    Benign(Benign),
    /// The new version is at fault on the first chipset.
    Fault(Fault),
}

/// Healthy fleets, plain or with something that looks like a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Benign {
    /// Nothing at all.
    Plain,
    /// A hot day: runs slow down by 1.3 to 2.2, which the status often hides.
    ThermalWave,
    /// Half of the devices save power.
    PowerSave,
    /// A governor that keeps clocks low: every run of a device is slower by up to 1.05 to 1.4.
    Governor,
    /// Other work on the devices: 15 to 45 % of the runs meet it.
    Contention,
    /// Sessions are made more often: more cold runs.
    ColdSurge,
    /// The mix of input sizes shifts.
    SizeShift,
    /// 3 to 12 devices.
    FewDevices,
    /// Devices run at another time of day.
    TimeOfDay,
    /// Slower device models join with the new version.
    DeviceMixShift,
    /// The new version computes 1.1 to 1.5 times as much.
    HeavierModel,
    /// The graph is split elsewhere: under 2 % of the MACs move, and latency stays.
    HarmlessSplit,
    /// A new runtime counts and fuses nodes differently.
    ChangedCounting,
    /// One device makes a hundred times as many runs, slowly.
    WhaleDevice,
    /// Another new version rolls out in stages when this one begins to, so devices go from one to the next.
    TwoRollouts,
    /// 30 % of the devices send hours to five days late.
    LateReports,
    /// Wall clocks of 30 % of the devices are wrong by up to five years.
    WrongClocks,
    /// Reports of 30 % of the devices come twice.
    DuplicateUploads,
    /// More load on one chipset, for two models that run on different devices. 20 to 70 % of the devices take 1.5 to
    /// 2.4 times as long, different ones each day.
    SharedLoad,
    /// A hot week: half of the devices take 1.5 to 2.4 times as long in a window, different ones each day. Devices that
    /// report a thermal state report the heat.
    UnseenHeat,
    /// Sessions always have two speeds, on big and little cores, which differ by a factor of 1.6 to 2.4.
    TwoSpeeds,
}

impl Benign {
    /// The confounders of the project's detection notes.
    pub const CONFOUNDERS: [Benign; 14] = [
        Benign::Plain,
        Benign::ThermalWave,
        Benign::PowerSave,
        Benign::Governor,
        Benign::Contention,
        Benign::ColdSurge,
        Benign::SizeShift,
        Benign::FewDevices,
        Benign::TimeOfDay,
        Benign::DeviceMixShift,
        Benign::HeavierModel,
        Benign::HarmlessSplit,
        Benign::ChangedCounting,
        Benign::WhaleDevice,
    ];

    /// Behaviour of devices in the field that the confounders leave out.
    pub const CIRCUMSTANCES: [Benign; 3] =
        [Benign::SharedLoad, Benign::UnseenHeat, Benign::TwoSpeeds];

    /// Other events of healthy fleets: two roll-outs, late and repeated reports, wrong clocks.
    pub const OTHERS: [Benign; 4] = [
        Benign::TwoRollouts,
        Benign::LateReports,
        Benign::WrongClocks,
        Benign::DuplicateUploads,
    ];
}

/// A fault of the new version on the first chipset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// The devices and runs that it hits.
    pub kind: FaultKind,
    /// Factor by which a hit run is slower.
    pub factor: f64,
    /// Share of the MACs that move to the CPU, in (0, 1].
    pub moved: f64,
}

/// The devices and runs that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// All runs of all devices.
    Total,
    /// All runs of this share of the devices.
    SomeDevices(f64),
    /// This share of the runs of all devices; the placement does not show it.
    IntermittentRuns(f64),
    /// This share of the sessions of all devices.
    IntermittentSessions(f64),
    /// All runs of all devices on the new version, which rolls out over six windows.
    Drift,
}

/// The placements that devices can report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlacementView {
    /// Nodes and MACs.
    Full,
    NodesOnly,
    Missing,
    /// Devices report the healthy placement in any case.
    Lying,
}
