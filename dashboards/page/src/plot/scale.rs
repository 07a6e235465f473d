//! Scales from values to coordinates, and their ticks.

/// Positions of ticks within a decade, the set with the fewest first.
const STEPS: [&[f64]; 3] = [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]];

/// A logarithmic scale of positive values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LogScale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogScale {
    /// Covers the values, and at least a factor of four, from coordinate `from` to `to`. `None` without a positive
    /// finite value.
    pub(crate) fn over(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values {
            if value.is_finite() && value > 0.0 {
                low = low.min(value);
                high = high.max(value);
            }
        }
        if high <= 0.0 {
            return None;
        }
        let missing = (4.0 / (high / low)).max(1.0).sqrt();
        Some(Self {
            low: low / missing,
            high: high * missing,
            from,
            to,
        })
    }

    /// Works like [`Self::over`], but begins and ends at round values. So an axis with few ticks has one at each end.
    pub(crate) fn round(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let over = Self::over(values, from, to)?;
        let round = |value: f64, is_end: bool| {
            let decade = 10f64.powf(value.log10().floor());
            let mut steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter();
            match is_end {
                true => steps.find(|step| *step >= value * 0.999),
                false => steps.rfind(|step| *step <= value * 1.001),
            }
        };
        Some(Self {
            low: round(over.low, false).unwrap_or(over.low),
            high: round(over.high, true).unwrap_or(over.high),
            ..over
        })
    }

    /// Returns the coordinate of a value; NaN if the value has no logarithm.
    pub(crate) fn at(self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// Returns at most `most` round values, rising.
    pub(crate) fn ticks(self, most: usize) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor(), self.high.log10().ceil());
        let mut best = Vec::new();
        for steps in STEPS {
            let mut ticks = Vec::new();
            let mut decade = first;
            while decade <= last {
                let values = steps.iter().map(|step| step * 10f64.powf(decade));
                ticks.extend(values.filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v)));
                decade += 1.0;
            }
            if ticks.len() <= most && ticks.len() >= best.len() {
                best = ticks;
            }
        }
        best
    }
}

/// Returns 0 and at most `most` round whole numbers up to `high`.
pub(crate) fn whole_ticks(high: f64, most: usize) -> Vec<f64> {
    if !(high.is_finite() && high > 0.0) || most == 0 {
        return vec![0.0];
    }
    // One step more than fits does not justify a step that is twice as large.
    let raw = (high / (most as f64 + 0.99)).max(1.0);
    let decade = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * decade)
        .find(|step| *step >= raw)
        .unwrap_or(10.0 * decade);
    let mut ticks = vec![0.0];
    while ticks.len() <= most && ticks[ticks.len() - 1] + step <= high {
        ticks.push(ticks[ticks.len() - 1] + step);
    }
    ticks
}

/// Returns a tick's label without a unit.
pub(crate) fn tick_label(value: f64) -> String {
    let text = match value {
        value if value >= 10.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
