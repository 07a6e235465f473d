//! Circumstances of the field: permanent behaviour of whole fleets, for healthy and for faulty new versions.

/// A circumstance of a family. Its truth is independent of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Circumstance {
    /// One session of 12 runs a day.
    OneSession,
    /// Runs of a device are log-normal with sigma 0.5.
    NoisyRuns,
    /// Sessions run on big or on little cores, whose speeds differ by a factor of 1.6 to 2.4.
    BigAndLittleCores,
    /// Clocks of a device keep a step for two to five days: 1, 1.15, 1.35 or 1.6 times as slow.
    StickyClocks,
    /// Sessions take up to 1.3 to 1.8 times as long in the evening, when most of them are.
    EveningLoad,
    /// From the new version on, a second model takes its share of the NPU: 30 to 90 % of the runs of both meet.
    SharedNpu,
    /// The new version rolls out from 1 to 100 % in seven days.
    SlowRollout,
    /// Two new versions, each on half of the devices.
    AbHalves,
    /// A new version every two days.
    FrequentVersions,
    /// A fifth of the wall clocks are wrong by up to 400 days.
    ClocksOfAnotherYear,
    /// 30 % of the devices send 1.5 to 2.3 days late.
    DaysLate,
    /// A third of the devices are short of memory: one run in ten waits for pages, and sessions end often.
    ShortOfMemory,
    /// Twice the cold starts, from the new version on.
    ColdStarts,
    /// 3 to 12 devices a chipset.
    FewOfEach,
    /// No version, no window and no device is older than the new version.
    FirstDay,
}

impl Circumstance {
    /// All of them.
    pub const ALL: [Circumstance; 15] = [
        Circumstance::OneSession,
        Circumstance::NoisyRuns,
        Circumstance::BigAndLittleCores,
        Circumstance::StickyClocks,
        Circumstance::EveningLoad,
        Circumstance::SharedNpu,
        Circumstance::SlowRollout,
        Circumstance::AbHalves,
        Circumstance::FrequentVersions,
        Circumstance::ClocksOfAnotherYear,
        Circumstance::DaysLate,
        Circumstance::ShortOfMemory,
        Circumstance::ColdStarts,
        Circumstance::FewOfEach,
        Circumstance::FirstDay,
    ];

    /// Returns the circumstance's name in the report.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Circumstance::OneSession => "one session of 12 runs a day",
            Circumstance::NoisyRuns => "log-normal runs, sigma 0.5",
            Circumstance::BigAndLittleCores => "sessions on big and little cores",
            Circumstance::StickyClocks => "clock steps that stick for days",
            Circumstance::EveningLoad => "load in the evening",
            Circumstance::SharedNpu => "two models share the NPU",
            Circumstance::SlowRollout => "1 to 100 % in seven days",
            Circumstance::AbHalves => "two new versions, half each",
            Circumstance::FrequentVersions => "a version every two days",
            Circumstance::ClocksOfAnotherYear => "a fifth of the clocks wrong by up to 400 days",
            Circumstance::DaysLate => "30 % of the devices 1.5 to 2.3 days late",
            Circumstance::ShortOfMemory => "a third short of memory",
            Circumstance::ColdStarts => "twice the cold starts",
            Circumstance::FewOfEach => "3 to 12 devices a chipset",
            Circumstance::FirstDay => "nothing before the first day",
        }
    }
}
