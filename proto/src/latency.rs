//! Latency of one session's runs in one stratum, and the device's own earlier latency.

use crate::{
    device::{MAX_RUNTIME_VERSION_BYTES, VENDOR_FINGERPRINT_HASH_CHARS, runtime_name},
    error::{Inside, ParseError},
    histogram::{HistBounds, HistScheme, SparseHistogram},
    ids::SessionUid,
    message::{
        CheckedMessage, Count, Enum, EnumNumbers, Fields, Finite, I32, Inner, Kind, List, Maybe,
        MaybeInner, Name, Numbers, PositiveCount, Text, U32, U64, bounded, each_once, message,
    },
    session::MAX_MODEL_VERSION_BYTES,
    stratum::{Stratum, StratumKey},
    v1,
    wire::each_field,
    wire_enum::{WireEnum, wire_enum},
};

wire_enum! {
    /// Which earlier state of the device a self baseline is from.
    #[expect(missing_docs, reason = "the .proto documents the values")]
    pub enum BaselineKind: BaselineKind {
        PreviousVersion = PreviousVersion "previous_version",
        EarlierRuntime = EarlierRuntime "earlier_runtime",
    }
}

wire_enum! {
    /// Reason for a missing self baseline.
    #[expect(missing_docs, reason = "the .proto documents the values")]
    pub enum BaselineAbsence: BaselineAbsence {
        FirstVersion = FirstVersion "first_version",
        TooFewRuns = TooFewRuns "too_few_runs",
        NewShape = NewShape "new_shape",
        Lost = Lost "lost",
        NotKept = NotKept "not_kept",
    }
}

/// Maximum number of first runs of a session that are listed one by one.
pub const MAX_FIRST_RUNS: usize = 3;
/// One of each kind.
const MAX_BASELINES: usize = BaselineKind::ALL.len();

/// Latency of the runs of one session in one stratum during the interval.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct LatencySeries {
    pub session_uid: SessionUid,
    pub stratum: Stratum,
    pub hist_scheme: HistScheme,
    pub histogram: SparseHistogram,
    pub n: u64,
    pub sum_us: f64,
    pub m2_us2: f64,
    pub min_us: f64,
    pub max_us: f64,
    /// Runs the host made in this stratum; at least `n + dropped_runs`.
    pub runs_seen: u64,
    /// One run in this many was recorded.
    pub sampled_one_in: u32,
    pub dropped_runs: u64,
    pub first_runs_us: Vec<u64>,
    pub slow_fast_switches: Option<u64>,
    pub longest_slow_streak: Option<u64>,
    pub exceed: Option<ExceedCounts>,
    /// The device's own baselines, or why there are none.
    pub baselines: Baselines,
}

/// A device's own baselines, or the reason for their absence.
#[derive(Debug, Clone, PartialEq)]
pub enum Baselines {
    /// One or two, at most one of each kind; `exceed` refers to the first.
    Known(Vec<SelfBaseline>),
    /// None, and why.
    Absent(BaselineAbsence),
}

impl Baselines {
    /// Returns the baselines, which may be none.
    pub fn known(&self) -> &[SelfBaseline] {
        match self {
            Self::Known(baselines) => baselines,
            Self::Absent(_) => &[],
        }
    }

    /// Returns the baseline of a kind.
    pub fn of_kind(&self, kind: BaselineKind) -> Option<&SelfBaseline> {
        self.known().iter().find(|b| b.kind == kind)
    }

    /// Returns why there are no baselines.
    pub fn absence(&self) -> Option<BaselineAbsence> {
        match self {
            Self::Known(_) => None,
            Self::Absent(reason) => Some(*reason),
        }
    }
}

/// Runs beyond multiples of the p95 of the first baseline: each count includes the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct ExceedCounts {
    pub beyond_1_4x: u64,
    pub beyond_2x: u64,
    pub beyond_3x: u64,
}

/// The device's own earlier latency of the same model and input shape, clean warm runs only.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SelfBaseline {
    pub kind: BaselineKind,
    pub model_version: String,
    pub n: u64,
    /// Latency at quantile 0.1, above zero.
    pub p10_us: f64,
    /// Latency at quantile 0.5, at least `p10_us`.
    pub p50_us: f64,
    /// Latency at quantile 0.95, at least `p50_us`.
    pub p95_us: f64,
    pub cv: f64,
    pub vendor_fingerprint_hash: String,
    pub ort_version: String,
    pub ep_version: String,
}

impl SelfBaseline {
    /// Returns the name of the baseline's runtime, in the form of [`Runtime::name`](crate::Runtime::name).
    pub fn runtime_name(&self) -> String {
        runtime_name(&self.ort_version, &self.ep_version)
    }
}

message! {
    mod series_fields: LatencySeries from v1::LatencySeries {
        1 session_uid: SessionUid,
        2 stratum: Inner<Stratum>,
        3 hist_scheme: Enum<HistScheme>,
        4 histogram: SparseHistogram,
        5 n: PositiveCount,
        6 sum_us: Finite,
        7 m2_us2: Finite,
        8 min_us: Finite,
        9 max_us: Finite,
        10 runs_seen: Count,
        11 sampled_one_in: U32,
        12 dropped_runs: Count,
        13 first_runs_us: Numbers<MAX_FIRST_RUNS>,
        14 slow_fast_switches: Maybe<Count>,
        15 longest_slow_streak: Maybe<Count>,
        16 exceed: MaybeInner<ExceedCounts>,
        17 baselines: List<SelfBaseline, MAX_BASELINES>,
        18 baseline_absence: I32,
        19 whole_ns: MaybeInner<WholeNanoseconds>,
    }
    checked by hand;
}

impl TryFrom<v1::LatencySeries> for LatencySeries {
    type Error = ParseError;

    fn try_from(s: v1::LatencySeries) -> Result<Self, ParseError> {
        let s = ParsedFields::parse(s)?;
        let extent = Extent::new(s.sum_us, s.min_us, s.max_us).or_whole_ns(s.whole_ns)?;
        let series = Self {
            session_uid: s.session_uid,
            stratum: s.stratum,
            hist_scheme: s.hist_scheme,
            histogram: s.histogram,
            n: s.n,
            sum_us: extent.sum_us,
            m2_us2: s.m2_us2,
            min_us: extent.min_us,
            max_us: extent.max_us,
            runs_seen: runs_seen(s.runs_seen, s.n, s.dropped_runs),
            sampled_one_in: s.sampled_one_in.max(1),
            dropped_runs: s.dropped_runs,
            first_runs_us: s.first_runs_us,
            slow_fast_switches: s.slow_fast_switches,
            longest_slow_streak: s.longest_slow_streak,
            exceed: s.exceed,
            baselines: known_or_absent(s.baselines, s.baseline_absence)?,
        };
        let numbers = SeriesNumbers {
            total: series.histogram.total(),
            n: series.n,
            m2_us2: series.m2_us2,
            extent,
            runs_seen: series.runs_seen,
            dropped_runs: series.dropped_runs,
            slow_fast_switches: series.slow_fast_switches,
            longest_slow_streak: series.longest_slow_streak,
            exceed: series.exceed,
            has_baseline: !series.baselines.known().is_empty(),
        };
        numbers.check()?;
        Ok(series)
    }
}

/// Key of a series, unique in a report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct SeriesKey<'a> {
    pub(crate) session_uid: u64,
    stratum: StratumKey<'a>,
}

/// Maximum number of threads that run one session.
const MAX_THREADS: f64 = 256.0;
/// A shorter interval counts as this long: its clock may have been read late.
const MIN_INTERVAL_MS: u64 = 1_000;

impl LatencySeries {
    /// True if a device can have measured these numbers in an interval of this length.
    pub fn is_possible_in(&self, interval_length_ms: u64) -> bool {
        let mut bounds = HistBounds::default();
        for (index, count) in self.histogram.buckets() {
            bounds.add(index, count);
        }
        let extent = Extent::new(self.sum_us, self.min_us, self.max_us);
        let busy_us = extent.busy_us(self.n);
        extent.check_within(&bounds).is_ok() && fits_interval(busy_us, interval_length_ms).is_ok()
    }
}

/// Fails if runs that took at least `busy_us` do not fit into an interval.
#[expect(clippy::cast_precision_loss, reason = "a bound")]
pub(crate) fn fits_interval(busy_us: f64, interval_length_ms: u64) -> Result<(), ParseError> {
    let interval_us = interval_length_ms.max(MIN_INTERVAL_MS) as f64 * 1e3;
    if busy_us <= MAX_THREADS * interval_us {
        return Ok(());
    }
    let expected = format!(
        "n x min_us within interval_length_ms, {interval_length_ms}, of {MAX_THREADS} threads"
    );
    Err(ParseError::malformed("n", expected, busy_us))
}

/// The part of a valid series that the report needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedSeries<'a> {
    pub(crate) key: SeriesKey<'a>,
    /// Lower bound of the time that its runs took, without runs that may have begun before the interval.
    pub(crate) busy_us: f64,
}

impl CheckedMessage for LatencySeries {
    type Kept<'a> = CheckedSeries<'a>;

    fn check(bytes: &[u8]) -> Option<CheckedSeries<'_>> {
        let mut s = series_fields::Seen::default();
        let mut kinds = EnumNumbers::default();
        each_field(bytes, |number, value| match number {
            series_fields::field::baselines => {
                s.baselines += 1;
                kinds.add(SelfBaseline::check(value.bytes()?)?)
            }
            _ => s.see(number, value),
        })?;
        if !s.is_whole() {
            return None;
        }
        let extent = Extent::new(s.sum_us, s.min_us, s.max_us);
        let extent = extent.or_whole_ns(s.whole_ns).ok()?;
        let has_baseline = s.baselines > 0;
        let bounds = SparseHistogram::bounds_of_v2(s.histogram).ok()?;
        extent.check_within(&bounds).ok()?;
        let numbers = SeriesNumbers {
            total: bounds.total,
            n: s.n,
            m2_us2: s.m2_us2,
            extent,
            runs_seen: runs_seen(s.runs_seen, s.n, s.dropped_runs),
            dropped_runs: s.dropped_runs,
            slow_fast_switches: s.slow_fast_switches,
            longest_slow_streak: s.longest_slow_streak,
            exceed: s.exceed,
            has_baseline,
        };
        numbers.check().ok()?;
        let is_explained = match has_baseline {
            true => s.baseline_absence == 0,
            false => BaselineAbsence::from_number(s.baseline_absence).is_some(),
        };
        let key = SeriesKey {
            session_uid: s.session_uid,
            stratum: s.stratum?,
        };
        let busy_us = extent.busy_us(s.n);
        is_explained.then_some(CheckedSeries { key, busy_us })
    }
}

/// On the wire `runs_seen` is left out if it equals `n + dropped_runs`.
fn runs_seen(sent: u64, n: u64, dropped_runs: u64) -> u64 {
    match sent {
        0 => n.saturating_add(dropped_runs),
        sent => sent,
    }
}

/// Sum and extremes, which are sent as microseconds or, if they are whole, as nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Extent {
    sum_us: f64,
    min_us: f64,
    max_us: f64,
}

impl Extent {
    fn new(sum_us: f64, min_us: f64, max_us: f64) -> Self {
        Self {
            sum_us,
            min_us,
            max_us,
        }
    }

    fn or_whole_ns(self, ns: Option<WholeNanoseconds>) -> Result<Self, ParseError> {
        let Some(ns) = ns else { return Ok(self) };
        if self != Self::default() {
            let expected = "nothing next to sum_us, min_us and max_us";
            return Err(ParseError::malformed("whole_ns", expected, "both"));
        }
        Ok(Self::new(us(ns.sum), us(ns.min), us(ns.max)))
    }

    /// Lower bound of the time that `n` runs took. Runs that began before the interval, one per thread, are left out.
    #[expect(clippy::cast_precision_loss, reason = "a bound")]
    fn busy_us(self, n: u64) -> f64 {
        n as f64 * self.min_us.max(1.0) - MAX_THREADS * self.max_us
    }

    /// Fails if extremes and sum do not fit values in the histogram's buckets.
    fn check_within(self, bounds: &HistBounds) -> Result<(), ParseError> {
        for (field, value, (least, most)) in [
            ("min_us", self.min_us, bounds.first_us()),
            ("max_us", self.max_us, bounds.last_us()),
            ("sum_us", self.sum_us, bounds.sum_us),
        ] {
            // Sums are rounded, and latencies are rounded to whole microseconds.
            let slack = 1e-6 * most + 1.0;
            if value < least - slack || value > most + slack {
                let expected = format!("{least} to {most}, the edges in the histogram");
                return Err(ParseError::malformed(field, expected, value));
            }
        }
        Ok(())
    }

    /// `None` if a value would not convert back to the same number.
    fn whole_ns(self) -> Option<v1::WholeNanoseconds> {
        Some(v1::WholeNanoseconds {
            sum: ns(self.sum_us)?,
            min: ns(self.min_us)?,
            max: ns(self.max_us)?,
        })
    }
}

/// Sum and extremes of a series in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WholeNanoseconds {
    sum: u64,
    min: u64,
    max: u64,
}

message! {
    mod ns_fields: WholeNanoseconds = v1::WholeNanoseconds {
        1 sum: U64,
        2 min: U64,
        3 max: U64,
    }
    keeps Self = |ns| Some(Self {
        sum: ns.sum,
        min: ns.min,
        max: ns.max,
    });
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

/// Numbers of a series, which must be possible together.
#[derive(Debug, Clone, Copy)]
struct SeriesNumbers {
    /// The histogram's number of runs.
    total: u64,
    n: u64,
    m2_us2: f64,
    extent: Extent,
    runs_seen: u64,
    dropped_runs: u64,
    slow_fast_switches: Option<u64>,
    longest_slow_streak: Option<u64>,
    exceed: Option<ExceedCounts>,
    has_baseline: bool,
}

impl SeriesNumbers {
    fn check(&self) -> Result<(), ParseError> {
        self.check_moments()?;
        self.check_counts()
    }

    /// The tolerance covers the rounding of a sum of `n` floating-point numbers. It is far below the effects that
    /// detection looks for.
    #[expect(clippy::cast_precision_loss, reason = "a tolerance follows")]
    fn check_moments(&self) -> Result<(), ParseError> {
        const TOLERANCE: f64 = 1e-6;
        let Extent {
            sum_us,
            min_us,
            max_us,
        } = self.extent;
        if self.total != self.n {
            let expected = format!("{}, the histogram's total", self.total);
            return Err(ParseError::malformed("n", expected, self.n));
        }
        if min_us > max_us {
            let expected = format!("at most max_us, {max_us}");
            return Err(ParseError::malformed("min_us", expected, min_us));
        }
        let n = self.n as f64;
        let (least, most) = (n * min_us, n * max_us);
        let slack = TOLERANCE * (most + 1.0);
        if sum_us < least - slack || sum_us > most + slack {
            let expected = format!("{least} to {most}");
            return Err(ParseError::malformed("sum_us", expected, sum_us));
        }
        // Popoviciu: no variance exceeds a quarter of the squared range.
        let range = max_us - min_us;
        let most = n * range * range / 4.0;
        if self.m2_us2 > most + TOLERANCE * n * (max_us * max_us + 1.0) {
            let expected = format!("at most {most}");
            return Err(ParseError::malformed("m2_us2", expected, self.m2_us2));
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), ParseError> {
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

fn known_or_absent(known: Vec<SelfBaseline>, absence: i32) -> Result<Baselines, ParseError> {
    if known.is_empty() {
        let reason = Enum::parse("baseline_absence", absence)?;
        return Ok(Baselines::Absent(reason));
    }
    if absence != 0 {
        let expected = "UNSPECIFIED where there is a baseline";
        return Err(ParseError::malformed("baseline_absence", expected, absence));
    }
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

message! {
    mod exceed_fields: ExceedCounts = v1::ExceedCounts {
        1 beyond_1_4x: Count,
        2 beyond_2x: Count,
        3 beyond_3x: Count,
    }
    keeps Self = |counts| Some(Self {
        beyond_1_4x: counts.beyond_1_4x,
        beyond_2x: counts.beyond_2x,
        beyond_3x: counts.beyond_3x,
    });
}

bounded! {
    AboveZero = f64 as f64, |v| v.is_finite() && *v > 0.0, "a finite number above 0";
}

message! {
    mod baseline_fields: SelfBaseline = v1::SelfBaseline {
        1 kind: Enum<BaselineKind>,
        2 model_version: Name<MAX_MODEL_VERSION_BYTES>,
        3 n: PositiveCount,
        4 p10_us: AboveZero,
        5 p50_us: Finite,
        6 p95_us: Finite,
        7 cv: Finite,
        8 vendor_fingerprint_hash: Text<VENDOR_FINGERPRINT_HASH_CHARS>,
        9 ort_version: Text<MAX_RUNTIME_VERSION_BYTES>,
        10 ep_version: Text<MAX_RUNTIME_VERSION_BYTES>,
    }
    rule SelfBaseline::with_rising_quantiles;
    keeps i32 = |b| (b.p50_us >= b.p10_us && b.p95_us >= b.p50_us).then_some(b.kind);
}

impl SelfBaseline {
    fn with_rising_quantiles(self) -> Result<Self, ParseError> {
        let rising = [
            ("p50_us", self.p50_us, self.p10_us),
            ("p95_us", self.p95_us, self.p50_us),
        ];
        for (field, value, least) in rising {
            if value < least {
                let expected = format!("at least {least}");
                return Err(ParseError::malformed(field, expected, value));
            }
        }
        Ok(self)
    }
}

impl From<&LatencySeries> for v1::LatencySeries {
    fn from(s: &LatencySeries) -> Self {
        let absence = s.baselines.absence();
        let extent = Extent::new(s.sum_us, s.min_us, s.max_us);
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
            histogram: SparseHistogram::encode(&s.histogram),
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
            exceed: s.exceed.as_ref().map(Into::into),
            baselines: s.baselines.known().iter().map(Into::into).collect(),
            baseline_absence: absence.map_or(0, BaselineAbsence::to_wire),
            whole_ns,
        }
    }
}
