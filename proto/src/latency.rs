//! Latency of one session's runs in one stratum, and what the device was used to before.

use crate::{
    bounds::{at_most, each_once, finite, list, positive, required, required_text, text},
    device::runtime_name,
    error::{Inside, ParseError},
    histogram::{HistScheme, SparseHistogram},
    ids::SessionUid,
    stratum::Stratum,
    v1,
    wire_enum::wire_enum,
};

wire_enum! {
    /// What a self baseline was learnt on.
    pub enum BaselineKind: BaselineKind {
        /// The last settled version of the model before this one.
        PreviousVersion = PreviousVersion "previous_version",
        /// This version on earlier firmware or runtime.
        EarlierRuntime = EarlierRuntime "earlier_runtime",
    }
}

wire_enum! {
    /// Why there is no self baseline.
    pub enum BaselineAbsence: BaselineAbsence {
        /// No earlier version was ever seen here.
        FirstVersion = FirstVersion "first_version",
        /// Too few clean runs of the earlier version.
        TooFewRuns = TooFewRuns "too_few_runs",
        /// Another input shape than before.
        NewShape = NewShape "new_shape",
        /// The file could not be read or was reset.
        Lost = Lost "lost",
        /// This sender keeps none.
        NotKept = NotKept "not_kept",
    }
}

/// Most first runs of a session that are sent apart.
pub const MAX_FIRST_RUNS: usize = 3;

/// Latency of the runs of one session in one stratum during the interval.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencySeries {
    /// The session, described in the same report.
    pub session_uid: SessionUid,
    /// What held while they were measured.
    pub stratum: Stratum,
    /// Layout of the histogram.
    pub hist_scheme: HistScheme,
    /// Recorded runs by bucket; its total is `n`.
    pub histogram: SparseHistogram,
    /// Recorded runs, 1 or more.
    pub n: u64,
    /// Their sum in microseconds.
    pub sum_us: f64,
    /// Sum of squared deviations from their own mean.
    pub m2_us2: f64,
    /// Shortest.
    pub min_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Runs the host made in this stratum; at least `n + dropped_runs`.
    pub runs_seen: u64,
    /// One run in this many was recorded.
    pub sampled_one_in: u32,
    /// Runs that should have been recorded and were not.
    pub dropped_runs: u64,
    /// The session's first runs, if they fell into this series.
    pub first_runs_us: Vec<u64>,
    /// Changes between slow and fast; `None` when several threads recorded.
    pub slow_fast_switches: Option<u64>,
    /// Longest streak of slow runs; `None` when several threads recorded.
    pub longest_slow_streak: Option<u64>,
    /// Runs far beyond what the device was used to; `None` without a baseline.
    pub exceed: Option<ExceedCounts>,
    /// What the device was used to, or why it is not known.
    pub baselines: Baselines,
}

/// A device's own past, never silently empty.
#[derive(Debug, Clone, PartialEq)]
pub enum Baselines {
    /// One or two, at most one of each kind; `exceed` refers to the first.
    Known(Vec<SelfBaseline>),
    /// None, and why.
    Absent(BaselineAbsence),
}

impl Baselines {
    /// All of them.
    pub fn known(&self) -> &[SelfBaseline] {
        match self {
            Self::Known(baselines) => baselines,
            Self::Absent(_) => &[],
        }
    }

    /// The one of a kind.
    pub fn of_kind(&self, kind: BaselineKind) -> Option<&SelfBaseline> {
        self.known().iter().find(|b| b.kind == kind)
    }

    /// Why there is none.
    pub fn absence(&self) -> Option<BaselineAbsence> {
        match self {
            Self::Known(_) => None,
            Self::Absent(reason) => Some(*reason),
        }
    }
}

/// Runs beyond multiples of the p95 of the first baseline: each includes the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExceedCounts {
    /// Beyond 1.4 times.
    pub beyond_1_4x: u64,
    /// Beyond 2 times.
    pub beyond_2x: u64,
    /// Beyond 3 times.
    pub beyond_3x: u64,
}

/// The device's own earlier latency of the same model and input shape, clean warm runs only.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfBaseline {
    /// What it was learnt on.
    pub kind: BaselineKind,
    /// Model version it was learnt on.
    pub model_version: String,
    /// Runs it was learnt from, 1 or more.
    pub n: u64,
    /// Latency at quantile 0.1, above zero.
    pub p10_us: f64,
    /// At 0.5, no less than p10.
    pub p50_us: f64,
    /// At 0.95, no less than p50.
    pub p95_us: f64,
    /// Standard deviation over mean.
    pub cv: f64,
    /// Firmware it was learnt on; empty: not known.
    pub vendor_fingerprint_hash: String,
    /// ORT it was learnt on; empty: not known.
    pub ort_version: String,
    /// EP it was learnt on; empty: not known.
    pub ep_version: String,
}

impl SelfBaseline {
    /// Name of the runtime it was learnt on, as [`Runtime::name`](crate::Runtime::name) makes it.
    pub fn runtime_name(&self) -> String {
        runtime_name(&self.ort_version, &self.ep_version)
    }
}

impl TryFrom<v1::LatencySeries> for LatencySeries {
    type Error = ParseError;

    fn try_from(s: v1::LatencySeries) -> Result<Self, ParseError> {
        let hist_scheme = HistScheme::parse("hist_scheme", s.hist_scheme)?;
        let histogram = SparseHistogram::decode_v2(&s.histogram).inside("histogram")?;
        at_most("first_runs_us", s.first_runs_us.len(), MAX_FIRST_RUNS)?;
        let stratum = required("stratum", s.stratum)?;
        let n = positive("n", s.n)?;
        let us = Extent {
            sum_us: finite("sum_us", s.sum_us)?,
            min_us: finite("min_us", s.min_us)?,
            max_us: finite("max_us", s.max_us)?,
        };
        let extent = us.or_whole_ns(s.whole_ns)?;
        let series = Self {
            session_uid: SessionUid::parse("session_uid", s.session_uid)?,
            stratum: Stratum::try_from(stratum).inside("stratum")?,
            hist_scheme,
            histogram,
            n,
            sum_us: extent.sum_us,
            m2_us2: finite("m2_us2", s.m2_us2)?,
            min_us: extent.min_us,
            max_us: extent.max_us,
            runs_seen: runs_seen(s.runs_seen, n, s.dropped_runs),
            sampled_one_in: s.sampled_one_in.max(1),
            dropped_runs: s.dropped_runs,
            first_runs_us: s.first_runs_us,
            slow_fast_switches: s.slow_fast_switches,
            longest_slow_streak: s.longest_slow_streak,
            exceed: s.exceed.map(ExceedCounts::from),
            baselines: parse_baselines(s.baselines, s.baseline_absence)?,
        };
        series.check_moments()?;
        series.check_counts()?;
        Ok(series)
    }
}

impl LatencySeries {
    fn check_moments(&self) -> Result<(), ParseError> {
        let moments = Moments {
            total: self.histogram.total(),
            n: self.n,
            sum_us: self.sum_us,
            m2_us2: self.m2_us2,
            min_us: self.min_us,
            max_us: self.max_us,
        };
        moments.check()
    }

    fn check_counts(&self) -> Result<(), ParseError> {
        let counts = RunCounts {
            n: self.n,
            runs_seen: self.runs_seen,
            dropped_runs: self.dropped_runs,
            slow_fast_switches: self.slow_fast_switches,
            longest_slow_streak: self.longest_slow_streak,
            exceed: self.exceed,
            has_baseline: !self.baselines.known().is_empty(),
        };
        counts.check()
    }
}

/// The wire leaves `runs_seen` out where it says nothing new.
pub(crate) fn runs_seen(sent: u64, n: u64, dropped_runs: u64) -> u64 {
    match sent {
        0 => n.saturating_add(dropped_runs),
        sent => sent,
    }
}

/// Sum and extremes, which come as microseconds or, where they are whole, as nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Extent {
    pub(crate) sum_us: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
}

impl Extent {
    pub(crate) fn or_whole_ns(self, ns: Option<v1::WholeNanoseconds>) -> Result<Self, ParseError> {
        let Some(ns) = ns else { return Ok(self) };
        if self != Self::default() {
            let expected = "nothing beside sum_us, min_us and max_us";
            return Err(ParseError::malformed("whole_ns", expected, "both"));
        }
        Ok(Self {
            sum_us: us(ns.sum),
            min_us: us(ns.min),
            max_us: us(ns.max),
        })
    }

    /// None where a value would not come back as the same number.
    fn whole_ns(self) -> Option<v1::WholeNanoseconds> {
        Some(v1::WholeNanoseconds {
            sum: ns(self.sum_us)?,
            min: ns(self.min_us)?,
            max: ns(self.max_us)?,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "104 days of runs are exact")]
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a value that does not come back is refused"
)]
fn ns(us: f64) -> Option<u64> {
    let ns = (us * 1e3).round() as u64;
    (self::us(ns).to_bits() == us.to_bits()).then_some(ns)
}

/// Count, sum, deviations and extremes of a series, which must be possible together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moments {
    /// The histogram's.
    pub(crate) total: u64,
    pub(crate) n: u64,
    pub(crate) sum_us: f64,
    pub(crate) m2_us2: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
}

impl Moments {
    /// The tolerance is what adding up `n` floating-point numbers can lose, and far below what
    /// detection can see.
    #[expect(clippy::cast_precision_loss, reason = "a tolerance follows")]
    pub(crate) fn check(&self) -> Result<(), ParseError> {
        const TOLERANCE: f64 = 1e-6;
        if self.total != self.n {
            let expected = format!("{}, the histogram's total", self.total);
            return Err(ParseError::malformed("n", expected, self.n));
        }
        if self.min_us > self.max_us {
            let expected = format!("at most max_us, {}", self.max_us);
            return Err(ParseError::malformed("min_us", expected, self.min_us));
        }
        let n = self.n as f64;
        let (least, most) = (n * self.min_us, n * self.max_us);
        let slack = TOLERANCE * (most + 1.0);
        if self.sum_us < least - slack || self.sum_us > most + slack {
            let expected = format!("{least} to {most}");
            return Err(ParseError::malformed("sum_us", expected, self.sum_us));
        }
        // Popoviciu: no variance exceeds a quarter of the squared range.
        let range = self.max_us - self.min_us;
        let most = n * range * range / 4.0;
        if self.m2_us2 > most + TOLERANCE * n * (self.max_us * self.max_us + 1.0) {
            let expected = format!("at most {most}");
            return Err(ParseError::malformed("m2_us2", expected, self.m2_us2));
        }
        Ok(())
    }
}

/// Counts of a series' runs, which must be possible together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunCounts {
    pub(crate) n: u64,
    pub(crate) runs_seen: u64,
    pub(crate) dropped_runs: u64,
    pub(crate) slow_fast_switches: Option<u64>,
    pub(crate) longest_slow_streak: Option<u64>,
    pub(crate) exceed: Option<ExceedCounts>,
    pub(crate) has_baseline: bool,
}

impl RunCounts {
    pub(crate) fn check(&self) -> Result<(), ParseError> {
        let accounted = self.n.saturating_add(self.dropped_runs);
        if self.runs_seen < accounted {
            let expected = format!("at least n + dropped_runs, {accounted}");
            return Err(ParseError::malformed("runs_seen", expected, self.runs_seen));
        }
        let ordered = [
            ("slow_fast_switches", self.slow_fast_switches),
            ("longest_slow_streak", self.longest_slow_streak),
        ];
        for (field, count) in ordered {
            if let Some(count) = count.filter(|c| *c > self.runs_seen) {
                let expected = format!("at most runs_seen, {}", self.runs_seen);
                return Err(ParseError::malformed(field, expected, count));
            }
        }
        if let Some(exceed) = self.exceed {
            exceed.check(self.n).inside("exceed")?;
            if !self.has_baseline {
                let expected = "nothing where there is no baseline";
                return Err(ParseError::malformed("exceed", expected, "counts"));
            }
        }
        Ok(())
    }
}

fn parse_baselines(known: Vec<v1::SelfBaseline>, absence: i32) -> Result<Baselines, ParseError> {
    if known.is_empty() {
        let reason = BaselineAbsence::parse("baseline_absence", absence)?;
        return Ok(Baselines::Absent(reason));
    }
    if absence != 0 {
        let expected = "UNSPECIFIED where there is a baseline";
        return Err(ParseError::malformed("baseline_absence", expected, absence));
    }
    let known = list("baselines", known, 2, SelfBaseline::try_from)?;
    each_once("baselines", &known, |b| b.kind)?;
    Ok(Baselines::Known(known))
}

impl ExceedCounts {
    fn check(&self, n: u64) -> Result<(), ParseError> {
        let counts = [
            ("beyond_1_4x", self.beyond_1_4x, n),
            ("beyond_2x", self.beyond_2x, self.beyond_1_4x),
            ("beyond_3x", self.beyond_3x, self.beyond_2x),
        ];
        for (field, count, most) in counts {
            if count > most {
                let expected = format!("at most {most}");
                return Err(ParseError::malformed(field, expected, count));
            }
        }
        Ok(())
    }
}

impl From<v1::ExceedCounts> for ExceedCounts {
    fn from(e: v1::ExceedCounts) -> Self {
        Self {
            beyond_1_4x: e.beyond_1_4x,
            beyond_2x: e.beyond_2x,
            beyond_3x: e.beyond_3x,
        }
    }
}

impl TryFrom<v1::SelfBaseline> for SelfBaseline {
    type Error = ParseError;

    fn try_from(b: v1::SelfBaseline) -> Result<Self, ParseError> {
        let p10_us = finite("p10_us", b.p10_us)?;
        if p10_us == 0.0 {
            return Err(ParseError::malformed("p10_us", "above 0", p10_us));
        }
        let p50_us = finite("p50_us", b.p50_us)?;
        let p95_us = finite("p95_us", b.p95_us)?;
        for (field, value, least) in [("p50_us", p50_us, p10_us), ("p95_us", p95_us, p50_us)] {
            if value < least {
                let expected = format!("at least {least}");
                return Err(ParseError::malformed(field, expected, value));
            }
        }
        let firmware = b.vendor_fingerprint_hash;
        Ok(Self {
            kind: BaselineKind::parse("kind", b.kind)?,
            model_version: required_text("model_version", b.model_version, 64)?,
            n: positive("n", b.n)?,
            p10_us,
            p50_us,
            p95_us,
            cv: finite("cv", b.cv)?,
            vendor_fingerprint_hash: text("vendor_fingerprint_hash", firmware, 32)?,
            ort_version: text("ort_version", b.ort_version, 32)?,
            ep_version: text("ep_version", b.ep_version, 32)?,
        })
    }
}

impl From<&LatencySeries> for v1::LatencySeries {
    fn from(s: &LatencySeries) -> Self {
        let absence = s.baselines.absence();
        let extent = Extent {
            sum_us: s.sum_us,
            min_us: s.min_us,
            max_us: s.max_us,
        };
        let whole_ns = extent.whole_ns();
        let us = match whole_ns {
            Some(_) => Extent::default(),
            None => extent,
        };
        let is_plain = s.runs_seen == runs_seen(0, s.n, s.dropped_runs);
        Self {
            session_uid: s.session_uid.get(),
            stratum: Some((&s.stratum).into()),
            hist_scheme: s.hist_scheme.to_wire(),
            histogram: s.histogram.encode_v2().into(),
            n: s.n,
            sum_us: us.sum_us,
            m2_us2: s.m2_us2,
            min_us: us.min_us,
            max_us: us.max_us,
            runs_seen: if is_plain { 0 } else { s.runs_seen },
            sampled_one_in: match s.sampled_one_in {
                1 => 0,
                one_in => one_in,
            },
            dropped_runs: s.dropped_runs,
            first_runs_us: s.first_runs_us.clone(),
            slow_fast_switches: s.slow_fast_switches,
            longest_slow_streak: s.longest_slow_streak,
            exceed: s.exceed.map(|e| v1::ExceedCounts {
                beyond_1_4x: e.beyond_1_4x,
                beyond_2x: e.beyond_2x,
                beyond_3x: e.beyond_3x,
            }),
            baselines: s.baselines.known().iter().map(Into::into).collect(),
            baseline_absence: absence.map_or(0, BaselineAbsence::to_wire),
            whole_ns,
        }
    }
}

impl From<&SelfBaseline> for v1::SelfBaseline {
    fn from(b: &SelfBaseline) -> Self {
        Self {
            kind: b.kind.to_wire(),
            model_version: b.model_version.clone(),
            n: b.n,
            p10_us: b.p10_us,
            p50_us: b.p50_us,
            p95_us: b.p95_us,
            cv: b.cv,
            vendor_fingerprint_hash: b.vendor_fingerprint_hash.clone(),
            ort_version: b.ort_version.clone(),
            ep_version: b.ep_version.clone(),
        }
    }
}
