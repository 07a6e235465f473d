//! Facts of the servers here for people, read from their metrics: for the page of the same process, and for `epwatch
//! status` of a `serve` in the data folder.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use epwatch_detector::DetectorConfig;
use epwatch_page::{Fact, Facts};
use epwatch_server::{ByteSize, Period};
use jiff::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::all_in_one::AllInOne;

/// Holds the address of the process's `/metrics` while it runs.
const ADDRESS_FILE: &str = "metrics.address";

/// Time for a `/metrics` of this machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A page of metrics is some hundred kB.
const MAX_PAGE_BYTES: u64 = 16 << 20;

/// Grace of the alert `EpwatchNotJudging`: the time that reports may take into the store.
const GRACE: Duration = Duration::from_secs(120);

/// Share of the WAL from which it is called nearly full.
const NEARLY_FULL: f64 = 0.8;

/// Returns a fact of a part that works.
pub(crate) fn fine(part: &'static str, text: String) -> Fact {
    Fact {
        part,
        text,
        is_fine: true,
    }
}

/// Returns the facts of collector, store and detector of this process, read anew for each page. `store` names the store.
pub(crate) fn of_this_process(stack: &AllInOne, store: String, detector: &DetectorConfig) -> Facts {
    let listen = stack.collector.listen();
    let collector = match listen.ip().is_loopback() {
        true => format!("Listens on http://{listen}, loopback only."),
        false => format!("Listens on {listen}."),
    };
    let metrics = stack.collector.metrics().clone();
    let steps = (detector.window, detector.step);
    Box::new(move || {
        let page = metrics.encode();
        let mut facts = vec![fine("Collector", collector.clone())];
        facts.extend(wal(&page));
        facts.extend(taken(&page, &store));
        facts.extend(judging(&page, steps, Timestamp::now()));
        facts.extend(channels(&page));
        facts
    })
}

/// Returns the facts of the `serve` or `demo` that runs on a data folder.
pub(crate) async fn of_folder(dir: &Path, detector: &DetectorConfig) -> Vec<Fact> {
    let unknown = |why: String| Fact {
        part: "WAL",
        text: format!("Unknown: {why}. /metrics of each collector has it."),
        is_fine: false,
    };
    let Ok(address) = fs::read_to_string(dir.join(ADDRESS_FILE)) else {
        return vec![unknown(format!("no serve runs on {}", dir.display()))];
    };
    let Ok(address) = address.trim().parse::<SocketAddr>() else {
        return vec![unknown(format!("{ADDRESS_FILE} there holds no address"))];
    };
    let read = tokio::time::timeout(TIMEOUT, metrics_of(address)).await;
    let page = match read.unwrap_or_else(|late| Err(late.into())) {
        Ok(page) => page,
        Err(error) => {
            let why = format!("http://{address}/metrics does not answer ({error})");
            return vec![unknown(why)];
        }
    };
    let Some(wal) = wal(&page) else {
        return vec![unknown(format!(
            "http://{address}/metrics is no collector's"
        ))];
    };
    let steps = (detector.window, detector.step);
    let mut facts = vec![wal];
    facts.extend(taken(&page, "The store"));
    facts.extend(judging(&page, steps, Timestamp::now()));
    facts.extend(channels(&page));
    facts
}

/// The file with the address, removed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the address. `epwatch status` goes without the facts if it cannot be written.
    pub(crate) fn write(dir: &Path, http: SocketAddr) -> Self {
        let path = dir.join(ADDRESS_FILE);
        let local = match http.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        let address = SocketAddr::new(local, http.port());
        if let Err(error) = fs::write(&path, format!("{address}\n")) {
            tracing::warn!(%error, path = %path.display(), "failed to write the address of /metrics");
        }
        Self(path)
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Fetches a page of metrics of this machine.
async fn metrics_of(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_PAGE_BYTES).read_to_end(&mut answer).await?;
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Returns the value of a metric without labels.
fn value(page: &str, metric: &str) -> Option<f64> {
    page.lines()
        .find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok())
}

fn bytes(n: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes of a disk"
    )]
    let n = n.max(0.0) as u64;
    // Three digits are enough for people.
    let unit = [1 << 30, 1 << 20, 1 << 10]
        .into_iter()
        .find(|unit| n >= 8 * unit);
    ByteSize(unit.map_or(n, |unit| n / unit * unit)).to_string()
}

fn wal(page: &str) -> Option<Fact> {
    let of = |name: &str| value(page, &format!("epwatch_collector_wal_{name}"));
    let (held, max) = (of("held_bytes")?, of("max_bytes")?);
    let (free, least) = (of("free_bytes")?, of("min_free_bytes")?);
    let mut room = format!("{} of {} are in use", bytes(held), bytes(max));
    // Where it is unknown the metric is the largest number there is.
    if free < 1e18 {
        room.push_str(&format!(", {} are free on its volume", bytes(free)));
    }
    room.push('.');
    let is_writable = of("writable")? > 0.0;
    let has_room = held < NEARLY_FULL * max && free >= 2.0 * least;
    let text = match (is_writable, has_room) {
        (false, _) => format!("Refuses reports, and devices keep them; the log says why. {room}"),
        (true, false) => format!("Takes reports, but has little room left. {room}"),
        (true, true) => format!("Takes reports. {room}"),
    };
    Some(Fact {
        part: "WAL",
        text,
        is_fine: is_writable && has_room,
    })
}

fn taken(page: &str, store: &str) -> Option<Fact> {
    let is_fine = value(page, "epwatch_collector_store_up")? > 0.0;
    let lag = value(page, "epwatch_collector_wal_lag_seconds")?;
    Some(Fact {
        part: "Store",
        text: match is_fine {
            true => format!("{store} takes reports, and has all of {lag:.0} s ago and before."),
            false => format!("{store} takes no reports; they wait in the WAL."),
        },
        is_fine,
    })
}

fn judging(page: &str, (window, step): (Period, Period), now: Timestamp) -> Option<Fact> {
    let last = value(page, "epwatch_detector_last_evaluation_timestamp_seconds")?;
    let every = format!("Judges a window of {window} every {step}.");
    if last <= 0.0 {
        let text = format!("{every} None is judged yet.");
        return Some(fine("Detector", text));
    }
    let since = now.as_millisecond() as f64 / 1000.0 - last;
    let is_fine = since <= 2.0 * step.0.as_secs_f64() + GRACE.as_secs_f64();
    let next = step.0.as_secs_f64() - since;
    let then = match (is_fine, next > 0.0) {
        (false, _) => {
            format!("The last one ended {since:.0} s ago: it is stuck, the log says why.")
        }
        (true, true) => format!("The next one ends in {next:.0} s."),
        (true, false) => "The next one is being judged.".to_owned(),
    };
    Some(Fact {
        part: "Detector",
        text: format!("{every} {then}"),
        is_fine,
    })
}

/// Returns what became of notifications; `None` without a channel.
fn channels(page: &str) -> Option<Fact> {
    let count = |result: &str| {
        let lines = page.lines().filter_map(|line| {
            let labels = line.strip_prefix("epwatch_detector_notifications_total{")?;
            let (labels, n) = labels.rsplit_once("} ")?;
            let notifier = labels.strip_prefix("notifier=\"")?.split('"').next()?;
            let is_it = labels.contains(&format!("result=\"{result}\""));
            Some((notifier, n.parse::<f64>().ok()?)).filter(|_| is_it)
        });
        lines.collect::<Vec<_>>()
    };
    let delivered = count("delivered");
    if delivered.is_empty() {
        return None;
    }
    let refused = count("dead_letter");
    let refused = refused.into_iter().filter(|(_, n)| *n > 0.0);
    let refused: Vec<String> = refused
        .map(|(notifier, n)| format!("{notifier} refused {n:.0} for good"))
        .collect();
    let sum: f64 = delivered.iter().map(|(_, n)| n).sum();
    let is_fine = refused.is_empty();
    let then = match is_fine {
        true => String::new(),
        false => format!(" {}: its URL or key is wrong.", refused.join(", ")),
    };
    Some(Fact {
        part: "Channels",
        text: format!("{sum:.0} notifications delivered since the start.{then}"),
        is_fine,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: &str = "# TYPE epwatch_collector_wal_held_bytes gauge
epwatch_collector_wal_held_bytes 4194304
epwatch_collector_wal_max_bytes 8589934592
epwatch_collector_wal_free_bytes 17179869184
epwatch_collector_wal_min_free_bytes 536870912
epwatch_collector_wal_writable 1
epwatch_collector_wal_lag_seconds 1.2
epwatch_collector_store_up 1
epwatch_detector_last_evaluation_timestamp_seconds 1800000000.0
epwatch_detector_notifications_total{notifier=\"pagerduty\",result=\"delivered\"} 3
epwatch_detector_notifications_total{notifier=\"pagerduty\",result=\"dead_letter\"} 0
";

    fn facts(page: &str, second: i64) -> Vec<Fact> {
        let now = Timestamp::from_second(second).unwrap();
        let hour = Period(Duration::from_secs(3600));
        [
            wal(page),
            taken(page, "The store"),
            judging(page, (hour, hour), now),
            channels(page),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    #[track_caller]
    fn check(change: (&str, &str), part: &str, says: &str) {
        let page = FINE.replace(change.0, change.1);
        assert_ne!(page, FINE);
        let facts = facts(&page, 1_800_000_060);
        let bad: Vec<&Fact> = facts.iter().filter(|fact| !fact.is_fine).collect();
        assert_eq!(bad.len(), 1, "{facts:?}");
        assert_eq!(bad[0].part, part);
        assert!(bad[0].text.contains(says), "{bad:?}");
    }

    #[test]
    fn what_works_is_said_with_its_room_and_its_next_window() {
        let facts = facts(FINE, 1_800_000_060);
        assert!(facts.iter().all(|fact| fact.is_fine), "{facts:?}");
        let texts: Vec<&str> = facts.iter().map(|fact| &*fact.text).collect();
        let expected = [
            "Takes reports. 4MiB of 8GiB are in use, 16GiB are free on its volume.",
            "The store takes reports, and has all of 1 s ago and before.",
            "Judges a window of 1h every 1h. The next one ends in 3540 s.",
            "3 notifications delivered since the start.",
        ];
        assert_eq!(texts, expected);
        assert_eq!(wal("nothing"), None);
    }

    #[test]
    fn each_part_that_fails_is_named() {
        let of = |name: &str, n: &str| format!("epwatch_collector_wal_{name} {n}\n");
        let writable = (of("writable", "1"), of("writable", "0"));
        check((&*writable.0, &*writable.1), "WAL", "Refuses reports");
        let held = (of("held_bytes", "4194304"), of("held_bytes", "8000000000"));
        check((&*held.0, &*held.1), "WAL", "little room");
        let free = (
            of("free_bytes", "17179869184"),
            of("free_bytes", "600000000"),
        );
        check((&*free.0, &*free.1), "WAL", "little room");
        check(("store_up 1", "store_up 0"), "Store", "wait in the WAL");
        let refused = ("dead_letter\"} 0", "dead_letter\"} 2");
        check(refused, "Channels", "pagerduty refused 2 for good");
        let stuck = ("1800000000.0", "1799992600.0");
        check(stuck, "Detector", "it is stuck");
    }
}
