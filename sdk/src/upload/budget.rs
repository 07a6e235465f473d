//! Byte budget per day and kind of network.
//!
//! Days are UTC days of the wall clock, which a phone may set at will. A clock set back keeps the spent bytes, and a
//! new day begins at most once in twenty hours of uptime, so a jumping clock brings no second budget. Processes of
//! the app share `DIR/budget`, a [`message_file`].

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
/// Shorter than any day between two midnights, longer than a clock's correction.
const SHORTEST_DAY: Duration = Duration::from_secs(20 * 3600);

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
    /// On unmetered networks, and if the kind is not reported.
    pub unmetered_per_day: u64,
    /// On metered networks; `None` forbids them.
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
    #[error(
        "the network is metered, and the host allows no bytes there: \
         SdkConfigBuilder::with_metered_bytes_per_day"
    )]
    Metered,
    #[error("the budget of {limit} bytes a day on {} networks is used up", network.as_str())]
    UsedUp { limit: u64, network: NetworkKind },
}

/// Bytes spent today.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Spent {
    #[prost(int64, tag = "1")]
    day: i64,
    #[prost(uint64, tag = "2")]
    unmetered: u64,
    #[prost(uint64, tag = "3")]
    metered: u64,
    /// Boot and uptime at the beginning of the day; empty if the day began with this file.
    #[prost(string, tag = "4")]
    boot_id: String,
    #[prost(uint64, optional, tag = "5")]
    uptime_ms: Option<u64>,
}

impl Spent {
    /// Begins a new day if it is one.
    fn turn(&mut self, now: Now, boot_id: &str) {
        let day = now.wall_unix_ms.div_euclid(DAY_MS);
        if *self == Self::default() {
            // The first day ends at midnight, however short it is.
            self.day = day;
            return;
        }
        if day <= self.day {
            // The clock was set back. The later day may have been wrong, and must not last for years.
            self.day = day;
            return;
        }
        let is_same_boot = !self.boot_id.is_empty() && self.boot_id == boot_id;
        let since = match (self.uptime_ms, now.uptime_ms) {
            (Some(then), Some(now)) if is_same_boot => now.checked_sub(then),
            _ => None,
        };
        if since.is_some_and(|ms| Duration::from_millis(ms) < SHORTEST_DAY) {
            return;
        }
        *self = Self {
            day,
            unmetered: 0,
            metered: 0,
            boot_id: boot_id.to_owned(),
            uptime_ms: now.uptime_ms,
        };
    }

    fn of(&mut self, network: NetworkKind) -> &mut u64 {
        match network {
            NetworkKind::Metered => &mut self.metered,
            _ => &mut self.unmetered,
        }
    }

    /// Bytes that may still be sent today over this network.
    fn left(&mut self, limits: &ByteBudget, network: NetworkKind) -> Result<u64, BudgetRefusal> {
        let limit = match network {
            NetworkKind::Offline => return Err(BudgetRefusal::Offline),
            NetworkKind::Metered => limits.metered_per_day.ok_or(BudgetRefusal::Metered)?,
            NetworkKind::Unmetered | NetworkKind::Unknown => limits.unmetered_per_day,
        };
        match limit.saturating_sub(*self.of(network)) {
            0 => Err(BudgetRefusal::UsedUp { limit, network }),
            left => Ok(left),
        }
    }
}

/// The budget of this folder, as of this process's last read or write.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    spent: Spent,
    /// Whether the file has this process's numbers.
    is_kept: bool,
}

impl Budget {
    /// Bytes that may still be sent today.
    pub(crate) fn left(
        &mut self,
        dir: &Path,
        limits: &ByteBudget,
        network: NetworkKind,
        now: Now,
        boot_id: &str,
    ) -> Result<u64, BudgetRefusal> {
        self.read(dir);
        let day = self.spent.day;
        self.spent.turn(now, boot_id);
        if self.spent.day != day {
            // The file must not bring back a day that the clock took back. If it cannot be written, this process
            // still has it.
            let _ = self.change(dir, network, |spent| spent);
        }
        self.spent.left(limits, network)
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

    /// Replaces the reserved bytes by those really sent.
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
        if self.spent.day != ours.day {
            self.spent = ours;
        } else if !was_kept {
            // The file lacks what could not be stored.
            self.spent.unmetered = self.spent.unmetered.max(ours.unmetered);
            self.spent.metered = self.spent.metered.max(ours.metered);
        }
        let spent = self.spent.of(network);
        *spent = how(*spent);
        if !installation::exists(dir) {
            // Another process has wiped the folder since. Nothing may be written after that.
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

    fn left(budget: &mut Budget, dir: &Path, network: NetworkKind, now: Now) -> Option<u64> {
        budget.left(dir, &LIMITS, network, now, "boot").ok()
    }

    #[test]
    fn each_network_has_its_own_and_a_restart_remembers() {
        use NetworkKind::{Metered, Offline, Unknown, Unmetered};
        let dir = folder();
        let mut budget = Budget::default();
        let now = at(NOON, HOUR);
        assert_eq!(left(&mut budget, dir.path(), Unmetered, now), Some(1_000));
        budget.reserve(dir.path(), Unmetered, 900).unwrap();
        budget.correct(dir.path(), Unmetered, 900, 850).unwrap();
        budget.reserve(dir.path(), Metered, 30).unwrap();
        let mut again = Budget::default();
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
        let refused = Budget::default().left(dir.path(), &limits, network, at(NOON, 1), "boot");
        assert_eq!(refused, Err(BudgetRefusal::Metered));
    }

    #[test]
    fn two_processes_add_up() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let (mut one, mut other) = (Budget::default(), Budget::default());
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
        let mut budget = Budget::default();
        left(&mut budget, dir.path(), network, now);
        budget.reserve(dir.path(), network, 500).unwrap();
        // Nobody can open a folder as the lock.
        let lock = dir.path().join(folder::LOCK);
        std::fs::remove_file(&lock).unwrap();
        std::fs::create_dir(&lock).unwrap();
        budget.reserve(dir.path(), network, 300).unwrap_err();
        assert_eq!(budget.spent(), (800, 0));
        assert_eq!(left(&mut budget, dir.path(), network, now), Some(200));
        std::fs::remove_dir(&lock).unwrap();
        budget.correct(dir.path(), network, 300, 290).unwrap();
        assert_eq!(budget.spent(), (790, 0));
        let mut again = Budget::default();
        assert_eq!(left(&mut again, dir.path(), network, now), Some(210));
    }

    #[test]
    fn a_folder_that_another_process_wiped_stays_so() {
        let dir = folder();
        let network = NetworkKind::Unmetered;
        let now = at(NOON, HOUR);
        let mut budget = Budget::default();
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
        let mut budget = Budget::default();
        let now = at(NOON, HOUR);
        assert_eq!(
            left(&mut budget, dir.path(), NetworkKind::Unknown, now),
            Some(1_000)
        );
    }

    #[test]
    fn a_clock_from_the_far_future_does_not_block_for_years() {
        let dir = folder();
        let mut budget = Budget::default();
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

    proptest! {
        /// The wall clock jumps within one boot: at most one budget in twenty hours, plus the first one.
        #[test]
        fn a_jumping_clock_brings_no_second_budget(
            jumps in prop::collection::vec((-5_i64..5, 0_u64..4), 1..60),
        ) {
            let dir = folder();
            let mut budget = Budget::default();
            let (mut uptime, mut sent) = (HOUR, 0);
            for (days, hours) in jumps {
                uptime += hours * HOUR;
                let now = at(NOON + days * DAY_MS, uptime);
                if let Some(bytes) = left(&mut budget, dir.path(), NetworkKind::Unmetered, now) {
                    budget.reserve(dir.path(), NetworkKind::Unmetered, bytes).unwrap();
                    sent += bytes;
                }
            }
            let days = (uptime - HOUR) / (20 * HOUR);
            prop_assert!(sent <= 1_000 * (days + 2), "{sent} bytes in {days} days");
        }
    }
}
