//! Progress of a fetch: on a terminal one bar with bytes, speed and what is fetched; elsewhere lines for a log.

use std::{
    cell::{Cell, RefCell},
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{cache, entry::megabytes, pins::Plan};

const TEMPLATE: &str = "{msg} [{bar:30}] {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// The progress of all engines that one command fetches.
#[derive(Debug)]
pub(crate) struct FetchProgress {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
    /// Bytes of the engines before the current one.
    before: Cell<u64>,
    current: RefCell<Option<Current>>,
}

/// The engine that is being downloaded.
#[derive(Debug)]
struct Current {
    quarters: Quarters,
    started: Instant,
    /// Bytes that an earlier, broken download left.
    resumed_bytes: u64,
}

impl FetchProgress {
    /// Progress over the downloads of these plans.
    pub(crate) fn of(plans: &[&Plan]) -> Self {
        let total = plans.iter().map(|plan| plan.download_bytes).sum();
        let bar = (total > 0 && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(TEMPLATE).expect("the template is a constant");
            bar.with_style(style.progress_chars("=> "))
        });
        Self {
            bar,
            before: Cell::new(0),
            current: RefCell::new(None),
        }
    }

    /// Prints a line, above the bar if there is one.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| cache::print(line)),
            None => cache::print(line),
        }
    }

    /// Notes that the download of an engine begins, with `resumed_bytes` already on disk.
    pub(crate) fn begin(&self, plan: &Plan, resumed_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}, {}", plan.name, plan.purpose));
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let mut quarters = Quarters::of(plan.download_bytes);
        quarters.reached(resumed_bytes);
        self.current.replace(Some(Current {
            quarters,
            started: Instant::now(),
            resumed_bytes,
        }));
    }

    /// Notes that so many bytes of the current engine are on disk.
    pub(crate) fn reached(&self, plan: &Plan, bytes: u64) {
        // Package managers briefly keep a second copy on disk.
        let bytes = bytes.min(plan.download_bytes);
        if let Some(bar) = &self.bar {
            bar.set_position(self.before.get() + bytes);
            return;
        }
        let mut current = self.current.borrow_mut();
        let Some(current) = current.as_mut() else {
            return;
        };
        if let Some(percent) = current.quarters.reached(bytes) {
            let fetched = bytes.saturating_sub(current.resumed_bytes);
            let speed = u128::from(fetched) * 1000 / current.started.elapsed().as_millis().max(1);
            let speed = megabytes(u64::try_from(speed).unwrap_or(u64::MAX));
            let (here, total) = (megabytes(bytes), megabytes(plan.download_bytes));
            let name = &plan.name;
            cache::print(&format!(
                "downloading {name}: {percent} %, {here} of {total}, {speed}/s"
            ));
        }
    }

    /// Notes that the engine is downloaded, so the next one may begin.
    pub(crate) fn end(&self, plan: &Plan) {
        self.reached(plan, plan.download_bytes);
        self.before.set(self.before.get() + plan.download_bytes);
        self.current.replace(None);
        if let Some(bar) = &self.bar {
            bar.disable_steady_tick();
            bar.set_position(self.before.get());
        }
    }
}

impl Drop for FetchProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The quarters of a download. A log needs no finer progress.
#[derive(Debug)]
struct Quarters {
    expected_bytes: u64,
    reported: u64,
}

impl Quarters {
    fn of(expected_bytes: u64) -> Self {
        Self {
            expected_bytes,
            reported: 0,
        }
    }

    /// Returns the percentage if `bytes` reach another quarter.
    fn reached(&mut self, bytes: u64) -> Option<u64> {
        let quarters = (bytes * 4 / self.expected_bytes.max(1)).min(4);
        (quarters > self.reported).then(|| {
            self.reported = quarters;
            quarters * 25
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quarter_of_a_download_is_reported_once() {
        let mut quarters = Quarters::of(400);
        let reported: Vec<_> = [10, 110, 120, 399, 800]
            .into_iter()
            .filter_map(|bytes| quarters.reached(bytes))
            .collect();
        assert_eq!(reported, [25, 75, 100]);
    }
}
