//! Byte budget per day and kind of network.
//!
//! A day ends when the collector's clock has passed midnight UTC, or when 24 hours have really passed since it began.
//! The device's own clock ends none: a phone's user may set it, and a robot without a battery for it begins each boot in
//! 1970. The collector's clock is known by its answers and the time since boot (`directives/clock.rs`). Time counts while
//! the device is on; `Spent::passed_ms` carries it over reboots, without the hours that it was off.
//!
//! A device that was off for a long time and has spent the day's bytes could never learn the collector's time. So once
//! a day an eighth more may be sent, if the device's clock shows a later date than when the day began. The answer then
//! has the collector's time.
//!
//! Processes of the app share `DIR/budget`, a [`message_file`].

use std::{io, path::Path, time::Duration};

use prost::Message;

use crate::{
    folder::{
        self,
        files::{self, FileLock},
        message_file::{self, Magic},
    },
    installation,
    time::Now,
};

const MAGIC: &Magic = b"epwbud1\n";
const MAX_FILE_BYTES: u64 = 4096;
const DAY_MS: i64 = 24 * 3_600_000;
/// Passed time is written at least this often, so that a reboot loses little of it.
const KEEP_PASSED: Duration = Duration::from_secs(3600);
/// Divisor of a day's bytes: the part that a device may add to learn the collector's time.
const TO_HEAR_THE_TIME: u64 = 8;

/// The network that uploads would take, as the host reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum NetworkKind {
    /// Not reported; counts as [`Self::Unmetered`].
    #[default]
    Unknown,
    /// Free of charge, for example Wi-Fi at home.
    Unmetered,
    /// Paid by the byte, for example a mobile network.
    Metered,
    /// No network; nothing is sent.
    Offline,
}

impl NetworkKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Unmetered => "unmetered",
            Self::Metered => "metered",
            Self::Offline => "offline",
        }
    }
}

/// Bytes that may be sent per day. See [`policy`](crate::policy) for the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByteBudget {
    /// Bytes per day on unmetered networks, and if the kind is not reported.
    pub unmetered_per_day: u64,
    /// Bytes per day on metered networks; `None` forbids uploads over them.
    pub metered_per_day: Option<u64>,
}

impl Default for ByteBudget {
    fn default() -> Self {
        Self {
            unmetered_per_day: crate::policy::UNMETERED_BYTES_PER_DAY,
            metered_per_day: None,
        }
    }
}

impl ByteBudget {
    pub(crate) fn of(&self, network: NetworkKind) -> u64 {
        match network {
            NetworkKind::Metered => self.metered_per_day.unwrap_or(0),
            _ => self.unmetered_per_day,
        }
    }
}

/// Reason to send nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BudgetRefusal {
    #[error("there is no network")]
    Offline,
    #[error("the network is metered, and the configuration allows no bytes a day there")]
    Metered,
    #[error("the budget of {limit} bytes a day on {} networks is used up", network.as_str())]
    UsedUp { limit: u64, network: NetworkKind },
}

/// Bytes spent today.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Spent {
    /// UTC day of the collector's clock; 0 if it is not known.
    #[prost(int64, tag = "1")]
    day: i64,
    #[prost(uint64, tag = "2")]
    unmetered: u64,
    #[prost(uint64, tag = "3")]
    metered: u64,
    /// Boot and uptime up to which `passed_ms` counts.
    #[prost(string, tag = "4")]
    boot_id: String,
    #[prost(uint64, optional, tag = "5")]
    uptime_ms: Option<u64>,
    /// Time since the day's begin in which the device was on.
    #[prost(uint64, tag = "6")]
    passed_ms: u64,
    /// UTC day of the device's own clock at the day's begin.
    #[prost(int64, tag = "7")]
    wall_day: i64,
    /// Days begun in this folder, so that processes agree on the newest.
    #[prost(uint64, tag = "8")]
    n_days: u64,
}

/// The clocks that a day depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DayClock<'a> {
    pub(crate) now: Now,
    pub(crate) boot_id: &'a str,
    /// A time that the collector's clock has certainly passed; 0 if it is not known.
    pub(crate) server_unix_ms: i64,
}

impl DayClock<'_> {
    fn server_day(self) -> i64 {
        self.server_unix_ms.div_euclid(DAY_MS)
    }

    fn wall_day(self) -> i64 {
        self.now.wall_unix_ms.div_euclid(DAY_MS)
    }
}

impl Spent {
    /// Counts the time that has passed, and begins a new day if one is due.
    fn turn(&mut self, clock: DayClock<'_>) {
        if self.n_days == 0 {
            *self = Self::begun(clock, clock.server_day(), 1);
            return;
        }
        self.pass(clock);
        let server_day = clock.server_day();
        if self.day == 0 {
            self.day = server_day;
        }
        if server_day > self.day {
            *self = Self::begun(clock, server_day, self.n_days + 1);
        } else if i64::try_from(self.passed_ms).unwrap_or(i64::MAX) >= DAY_MS {
            // The estimate of the collector's clock may have lost the same time at reboots. It must not end this day a
            // second time.
            let day = if self.day == 0 { 0 } else { self.day + 1 };
            *self = Self::begun(clock, day, self.n_days + 1);
        }
    }

    fn begun(clock: DayClock<'_>, day: i64, n_days: u64) -> Self {
        Self {
            day,
            boot_id: clock.boot_id.to_owned(),
            uptime_ms: clock.now.uptime_ms,
            wall_day: clock.wall_day(),
            n_days,
            ..Self::default()
        }
    }

    fn pass(&mut self, clock: DayClock<'_>) {
        let Some(now) = clock.now.uptime_ms.filter(|_| !clock.boot_id.is_empty()) else {
            return;
        };
        let since = match self.uptime_ms {
            Some(then) if self.boot_id == clock.boot_id => now.saturating_sub(then),
            // The stored uptime is from an earlier boot, so all of this boot's uptime counts.
            _ => now,
        };
        self.passed_ms = self.passed_ms.saturating_add(since);
        clock.boot_id.clone_into(&mut self.boot_id);
        self.uptime_ms = Some(now);
    }

    /// Takes over the passed time of another process, if that process has counted more.
    fn catch_up(&mut self, other: &Self) {
        if other.passed_ms > self.passed_ms {
            self.passed_ms = other.passed_ms;
            self.boot_id.clone_from(&other.boot_id);
            self.uptime_ms = other.uptime_ms;
        }
    }

    fn of(&mut self, network: NetworkKind) -> &mut u64 {
        match network {
            NetworkKind::Metered => &mut self.metered,
            _ => &mut self.unmetered,
        }
    }

    /// Bytes that may still be sent today over this network.
    fn left(
        &mut self,
        limits: &ByteBudget,
        network: NetworkKind,
        clock: DayClock<'_>,
    ) -> Result<u64, BudgetRefusal> {
        let mut limit = match network {
            NetworkKind::Offline => return Err(BudgetRefusal::Offline),
            NetworkKind::Metered => limits.metered_per_day.ok_or(BudgetRefusal::Metered)?,
            NetworkKind::Unmetered | NetworkKind::Unknown => limits.unmetered_per_day,
        };
        if clock.wall_day() > self.wall_day {
            limit = limit.saturating_add(limit / TO_HEAR_THE_TIME);
        }
        match limit.saturating_sub(*self.of(network)) {
            0 => Err(BudgetRefusal::UsedUp { limit, network }),
            left => Ok(left),
        }
    }
}

/// The budget of this folder, as of this process's last read or write.
#[derive(Debug, Default)]
pub(crate) struct UploadBudget {
    spent: Spent,
    /// Whether the file has this process's numbers.
    is_kept: bool,
}

impl UploadBudget {
    /// Bytes that may still be sent today.
    pub(crate) fn left(
        &mut self,
        dir: &Path,
        limits: &ByteBudget,
        network: NetworkKind,
        clock: DayClock<'_>,
    ) -> Result<u64, BudgetRefusal> {
        self.read(dir);
        let before = (self.spent.n_days, self.spent.passed_ms);
        self.spent.turn(clock);
        let has_passed = self.spent.passed_ms.saturating_sub(before.1);
        let is_new = before.0 > 0 && self.spent.n_days != before.0;
        if is_new || Duration::from_millis(has_passed) >= KEEP_PASSED {
            // If the file cannot be written, this process still has the numbers.
            let _ = self.change(dir, network, |spent| spent);
        }
        self.spent.left(limits, network, clock)
    }

    /// Counts bytes before they are sent, so that a kill cannot lose them.
    pub(crate) fn reserve(
        &mut self,
        dir: &Path,
        network: NetworkKind,
        bytes: u64,
    ) -> io::Result<()> {
        self.change(dir, network, |spent| spent.saturating_add(bytes))
    }

    /// Replaces the reserved bytes with the bytes really sent.
    pub(crate) fn correct(
        &mut self,
        dir: &Path,
        network: NetworkKind,
        reserved: u64,
        sent: u64,
    ) -> io::Result<()> {
        if reserved == sent {
            return Ok(());
        }
        self.change(dir, network, |spent| {
            spent.saturating_sub(reserved).saturating_add(sent)
        })
    }

    /// Bytes spent today: unmetered, metered.
    pub(crate) fn spent(&self) -> (u64, u64) {
        (self.spent.unmetered, self.spent.metered)
    }

    fn change(
        &mut self,
        dir: &Path,
        network: NetworkKind,
        how: impl Fn(u64) -> u64,
    ) -> io::Result<()> {
        let _lock = match FileLock::wait(&dir.join(folder::LOCK)) {
            Ok(lock) => lock,
            Err(error) => {
                // The bytes are spent even if they cannot be stored.
                let spent = self.spent.of(network);
                *spent = how(*spent);
                self.is_kept = false;
                return Err(error);
            }
        };
        // Another process may have spent bytes on the same day.
        let ours = std::mem::take(&mut self.spent);
        let was_kept = self.is_kept;
        self.read(dir);
        if self.spent.n_days < ours.n_days {
            self.spent = ours;
        } else if self.spent.n_days == ours.n_days {
            self.spent.catch_up(&ours);
            if self.spent.day == 0 {
                self.spent.day = ours.day;
            }
            if !was_kept {
                // The file lacks bytes that could not be stored.
                self.spent.unmetered = self.spent.unmetered.max(ours.unmetered);
                self.spent.metered = self.spent.metered.max(ours.metered);
            }
        }
        let spent = self.spent.of(network);
        *spent = how(*spent);
        if !installation::exists(dir) {
            // Another process has wiped the folder meanwhile. Nothing may be written after that.
            self.is_kept = false;
            return Ok(());
        }
        let bytes = message_file::to_bytes(MAGIC, &self.spent);
        let kept = files::replace(&dir.join(folder::BUDGET), &bytes);
        self.is_kept = kept.is_ok();
        kept
    }

    /// Keeps this process's numbers if the file is missing or unreadable.
    fn read(&mut self, dir: &Path) {
        let path = dir.join(folder::BUDGET);
        let bytes = files::read_at_most(&path, MAX_FILE_BYTES).ok();
        let spent = bytes.and_then(|bytes| message_file::parse::<Spent>(MAGIC, &bytes));
        match spent {
            Some(spent) if self.is_kept || self.spent == Spent::default() => {
                self.spent = spent;
                self.is_kept = true;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::deletion;
    use proptest::prelude::*;

    const LIMITS: ByteBudget = ByteBudget {
        unmetered_per_day: 1_000,
        metered_per_day: Some(100),
    };
    const NOON: i64 = 20_000 * DAY_MS + DAY_MS / 2;
    const HOUR: u64 = 3_600_000;

    /// A folder with an installation.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        installation::load_or_create(dir.path()).unwrap();
        dir
    }

    fn at(wall_unix_ms: i64, uptime_ms: u64) -> Now {
        Now {
            mono: Duration::from_millis(uptime_ms),
            wall_unix_ms,
            uptime_ms: Some(uptime_ms),
        }
    }

    fn clock(now: Now, boot_id: &str, server_unix_ms: i64) -> DayClock<'_> {
        DayClock {
            now,
            boot_id,
            server_unix_ms,
        }
    }

    fn left(budget: &mut UploadBudget, dir: &Path, network: NetworkKind, now: Now) -> Option<u64> {
        budget
            .left(dir, &LIMITS, network, clock(now, "boot", 0))
            .ok()
    }

    #[test]
    fn each_network_has_its_own_and_a_restart_remembers() {
        use NetworkKind::{Metered, Offline, Unknown, Unmetered};
        let dir = folder();
        let mut budget = UploadBudget::default();
        let now = at(NOON, HOUR);
        assert_eq!(left(&mut budget, dir.path(), Unmetered, now), Some(1_000));
        budget.reserve(dir.path(), Unmetered, 900).unwrap();
        budget.correct(dir.path(), Unmetered, 900, 850).unwrap();
        budget.reserve(dir.path(), Metered, 30).unwrap();
        let mut again = UploadBudget::default();
        assert_eq!(left(&mut again, dir.path(), Unmetered, now), Some(150));
        assert_eq!(left(&mut again, dir.path(), Unknown, now), Some(150));
        assert_eq!(left(&mut again, dir.path(), Metered, now), Some(70));
        assert_eq!(left(&mut again, dir.path(), Offline, now), None);
        again.reserve(dir.path(), Metered, 70).unwrap();
        assert_eq!(left(&mut again, dir.path(), Metered, now), None);
        let tomorrow = at(NOON + DAY_MS, 25 * HOUR);
        assert_eq!(left(&mut again, dir.path(), Metered, tomorrow), Some(100));
    }

    #[test]
    fn metered_networks_are_for_those_that_allow_them() {
        let dir = folder();
        let limits = ByteBudget::default();
        let network = NetworkKind::Metered;
        let now = clock(at(NOON, 1), "boot", 0);
        let refused = UploadBudget::default().left(dir.path(), &limits, network, now);
        assert_eq!(refused, Err(BudgetRefusal::Metered));
    }

    #[test]
    fn two_processes_add_up() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let (mut one, mut other) = (UploadBudget::default(), UploadBudget::default());
        let now = at(NOON, HOUR);
        for budget in [&mut one, &mut other] {
            left(budget, dir.path(), network, now);
            budget.reserve(dir.path(), network, 300).unwrap();
        }
        assert_eq!(left(&mut one, dir.path(), network, now), Some(400));
    }

    #[test]
    fn what_could_not_be_written_down_is_spent_all_the_same() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let now = at(NOON, HOUR);
        let mut budget = UploadBudget::default();
        left(&mut budget, dir.path(), network, now);
        budget.reserve(dir.path(), network, 500).unwrap();
        // A folder cannot be opened as the lock.
        let lock = dir.path().join(folder::LOCK);
        std::fs::remove_file(&lock).unwrap();
        std::fs::create_dir(&lock).unwrap();
        budget.reserve(dir.path(), network, 300).unwrap_err();
        assert_eq!(budget.spent(), (800, 0));
        assert_eq!(left(&mut budget, dir.path(), network, now), Some(200));
        std::fs::remove_dir(&lock).unwrap();
        budget.correct(dir.path(), network, 300, 290).unwrap();
        assert_eq!(budget.spent(), (790, 0));
        let mut again = UploadBudget::default();
        assert_eq!(left(&mut again, dir.path(), network, now), Some(210));
    }

    #[test]
    fn a_folder_that_another_process_wiped_stays_so() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let now = at(NOON, HOUR);
        let mut budget = UploadBudget::default();
        left(&mut budget, dir.path(), network, now);
        budget.reserve(dir.path(), network, 300).unwrap();
        deletion::forget(dir.path()).unwrap();
        budget.correct(dir.path(), network, 300, 200).unwrap();
        assert!(!dir.path().join(folder::BUDGET).exists());
        assert_eq!(left(&mut budget, dir.path(), network, now), Some(800));
    }

    #[test]
    fn a_file_of_nonsense_is_a_new_day() {
        let dir = folder();
        std::fs::write(dir.path().join(folder::BUDGET), b"\0nonsense").unwrap();
        let mut budget = UploadBudget::default();
        let now = at(NOON, HOUR);
        assert_eq!(
            left(&mut budget, dir.path(), NetworkKind::Unknown, now),
            Some(1_000)
        );
    }

    #[test]
    fn a_clock_from_the_far_future_does_not_block_for_years() {
        let dir = folder();
        let mut budget = UploadBudget::default();
        let network = NetworkKind::Unmetered;
        left(
            &mut budget,
            dir.path(),
            network,
            at(NOON + 30_000 * DAY_MS, HOUR),
        );
        budget.reserve(dir.path(), network, 1_000).unwrap();
        assert_eq!(
            left(&mut budget, dir.path(), network, at(NOON, 2 * HOUR)),
            None
        );
        let next = at(NOON + DAY_MS, 26 * HOUR);
        assert_eq!(left(&mut budget, dir.path(), network, next), Some(1_000));
    }

    /// Regression test: a device got a second budget after each boot, because its clock went back to 1970 and then on
    /// to today.
    #[test]
    fn a_reboot_of_a_device_without_a_clock_brings_no_second_budget() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let mut sent = 0;
        for boot in 0..10 {
            let boot_id = format!("boot {boot}");
            let mut budget = UploadBudget::default();
            // The times before and after the network has set the clock.
            for (wall, uptime) in [(0, 1_000), (NOON, 60_000)] {
                let now = clock(at(wall, uptime), &boot_id, 0);
                if let Ok(bytes) = budget.left(dir.path(), &LIMITS, network, now) {
                    budget.reserve(dir.path(), network, bytes).unwrap();
                    sent += bytes;
                }
            }
        }
        assert!(sent <= 1_125, "{sent}");
    }

    #[test]
    fn the_collectors_midnight_begins_a_day_and_the_devices_does_not() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let mut budget = UploadBudget::default();
        let left = |budget: &mut UploadBudget, wall, uptime_hours, server| {
            let now = clock(at(wall, uptime_hours * HOUR), "boot", server);
            budget.left(dir.path(), &LIMITS, network, now).ok()
        };
        assert_eq!(left(&mut budget, NOON, 1, 0), Some(1_000));
        budget.reserve(dir.path(), network, 1_000).unwrap();
        // A later date on the device's own clock allows an eighth more, to learn the collector's time.
        assert_eq!(left(&mut budget, NOON + 9 * DAY_MS, 2, 0), Some(125));
        assert_eq!(left(&mut budget, NOON, 2, 0), None);
        // The first answer has the day's date, so it does not begin a new day.
        assert_eq!(left(&mut budget, NOON, 3, NOON), None);
        let midnight = NOON + DAY_MS / 2;
        assert_eq!(left(&mut budget, 0, 14, midnight - 1), None);
        assert_eq!(left(&mut budget, 0, 15, midnight), Some(1_000));
        // The new day is in the file.
        let mut again = UploadBudget::default();
        assert_eq!(left(&mut again, 0, 15, midnight), Some(1_000));
        again.reserve(dir.path(), network, 1_000).unwrap();
        assert_eq!(left(&mut again, 0, 16, midnight), None);
    }

    /// The hours of all boots add up, although no boot has 24 hours and the clock is not usable.
    #[test]
    fn time_that_passed_is_carried_over_reboots() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let mut renewed_after = None;
        for boot in 0..10 {
            let mut budget = UploadBudget::default();
            for hour in [0, 2, 4] {
                let boot_id = format!("boot {boot}");
                let now = clock(at(0, hour * HOUR), &boot_id, 0);
                if let Ok(bytes) = budget.left(dir.path(), &LIMITS, network, now) {
                    budget.reserve(dir.path(), network, bytes).unwrap();
                    renewed_after = Some(boot * 4 + hour);
                }
            }
            if boot == 4 {
                assert_eq!(renewed_after, Some(0), "after 20 hours");
            }
        }
        assert_eq!(renewed_after, Some(24));
    }

    proptest! {
        // Each step writes and syncs a file.
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// The wall clock jumps, the device reboots, stays off, and receives the collector's time now and then. In each
        /// 24 hours of real time it may send one budget, plus the first budget and one for a midnight. Each budget has
        /// an eighth more.
        #[test]
        fn neither_a_jumping_clock_nor_reboots_bring_a_second_budget(
            steps in prop::collection::vec(
                (-5_i64..5, 0_u64..6, prop::option::weighted(0.3, 0_u64..40), any::<bool>()),
                1..80,
            ),
        ) {
            let dir = folder();
            let mut budget = UploadBudget::default();
            let (mut real, mut uptime, mut boot, mut sent) = (0_u64, HOUR, 0, 0);
            // The collector's latest known time, and the uptime when it arrived.
            let mut heard: Option<(i64, u64)> = None;
            for (days, hours, off, has_answer) in steps {
                real += hours * HOUR;
                uptime += hours * HOUR;
                if let Some(off) = off {
                    real += off * HOUR;
                    (uptime, boot) = (0, boot + 1);
                    budget = UploadBudget::default();
                    heard = heard.map(|(server, _)| (server, 0));
                }
                let server = heard.map_or(0, |(server, then)| server + i64::try_from(uptime - then).unwrap());
                let now = at(NOON + days * DAY_MS, uptime);
                let boot_id = format!("boot {boot}");
                let now = clock(now, &boot_id, server);
                if let Ok(bytes) = budget.left(dir.path(), &LIMITS, NetworkKind::Unmetered, now) {
                    budget.reserve(dir.path(), NetworkKind::Unmetered, bytes).unwrap();
                    sent += bytes;
                    if has_answer {
                        heard = Some((NOON + i64::try_from(real).unwrap(), uptime));
                    }
                }
            }
            let days = real / (24 * HOUR);
            prop_assert!(sent <= 1_125 * (days + 2), "{sent} bytes in {days} days");
        }
    }
}
