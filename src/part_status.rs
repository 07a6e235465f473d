//! Statuses of the servers on this machine, read from their metrics. The page of the same process shows them. So does
//! `epwatch status` for a `serve` on the data folder.

use std::{collections::BTreeMap, io, net::SocketAddr, path::Path, time::Duration};

use epwatch_detector::DetectorConfig;
use epwatch_page::{PartStatus, ReadPartStatus};
use epwatch_server::ByteSize;
use jiff::{SignedDuration, Timestamp};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    address_file::{self, Steps},
    all_in_one::AllInOne,
};

/// Time limit for reading `/metrics` on this machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes of a page of metrics, which usually has some hundred kB.
const MAX_PAGE_BYTES: u64 = 16 << 20;

/// From this share of its size on, the WAL is called nearly full.
const NEARLY_FULL: f64 = 0.8;

/// This long before its end, a certificate is reported, like in the alert `EpwatchCertificateEnds`.
const CERTIFICATE_ENDS_SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Age from which summaries are late, like in the alert `EpwatchSummariesBehind`.
const SUMMARIES_LATE: Duration = Duration::from_secs(1_800);

/// The name of the heartbeat's notifier, which sends no notifications to people.
const HEARTBEAT: &str = "heartbeat";

/// Returns the status of a part that works.
pub(crate) fn fine(part: &'static str, text: String) -> PartStatus {
    PartStatus {
        part,
        text,
        running: String::new(),
        is_fine: true,
    }
}

/// Returns the statuses of this process's collector, store and detector, read anew for each page. `store` names the
/// store.
pub(crate) fn of_this_process(
    stack: &AllInOne,
    store: String,
    detector: &DetectorConfig,
) -> ReadPartStatus {
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
        facts.extend(certificate(&page, Timestamp::now()));
        facts.extend(client_authorities(&page, Timestamp::now()));
        facts.extend(wal(&page));
        facts.extend(taken(&page, &store));
        facts.extend(summaries(&page));
        facts.extend(judging(&page, steps, Timestamp::now()));
        facts.extend(channels(&page));
        facts.extend(ended_tasks(&page));
        facts.extend(unpinned());
        facts
    })
}

/// Returns the statuses of the `serve` or `demo` that runs on a data folder. `store` names its store.
pub(crate) async fn of_folder(dir: &Path, store: &str) -> Vec<PartStatus> {
    let unknown = |why: String| PartStatus {
        part: "WAL",
        text: format!("Unknown: {why}. /metrics of each collector has it."),
        running: String::new(),
        is_fine: false,
    };
    let (address, steps) = match address_file::read(dir) {
        Ok(found) => found,
        Err(why) => return vec![unknown(why)],
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
            "http://{address}/metrics is not a collector's"
        ))];
    };
    let mut facts = vec![wal];
    facts.extend(certificate(&page, Timestamp::now()));
    facts.extend(client_authorities(&page, Timestamp::now()));
    facts.extend(taken(&page, store));
    facts.extend(summaries(&page));
    facts.extend(judging(&page, steps, Timestamp::now()));
    facts.extend(channels(&page));
    facts.extend(ended_tasks(&page));
    facts.extend(unpinned());
    facts
}

/// Returns a status if the store's library was accepted without a pinned hash.
fn unpinned() -> Option<PartStatus> {
    let mut engines = epwatch_engines::list().into_iter();
    let chdb = engines.find(|status| status.engine == epwatch_engines::Engine::Chdb)?;
    of_unpinned(chdb.is_unpinned)
}

fn of_unpinned(is_unpinned: bool) -> Option<PartStatus> {
    let text = "Was taken without a pinned hash (`epwatch engines fetch --unpinned`): nothing but its source says that it \
                is ClickHouse's.";
    is_unpinned.then(|| PartStatus {
        part: "libchdb",
        text: text.to_owned(),
        running: String::new(),
        is_fine: false,
    })
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

fn wal(page: &str) -> Option<PartStatus> {
    let of = |name: &str| value(page, &format!("epwatch_collector_wal_{name}"));
    let (held, max) = (of("held_bytes")?, of("max_bytes")?);
    let (free, least) = (of("free_bytes")?, of("min_free_bytes")?);
    let mut room = format!("{} of {} are in use", bytes(held), bytes(max));
    // If the free space is unknown, the metric has the largest possible number.
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
    Some(PartStatus {
        part: "WAL",
        text,
        running: String::new(),
        is_fine: is_writable && has_room,
    })
}

/// Returns a time of the device port's TLS files; `None` if it is not set.
#[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
fn tls_time(page: &str, name: &str) -> Option<Timestamp> {
    let name = format!("epwatch_collector_tls_{name}_timestamp_seconds");
    let second = value(page, &name).filter(|second| *second > 0.0)?;
    Timestamp::from_second(second as i64).ok()
}

fn minute(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// Returns when the first authority of clients ends, if it has ended or will soon. Devices connect nevertheless, so this
/// is not a failure.
fn client_authorities(page: &str, now: Timestamp) -> Option<PartStatus> {
    let end = tls_time(page, "client_ca_not_after")?;
    let left = end.duration_since(now);
    let verb = match left.is_positive() {
        true => "ends",
        false => "ended",
    };
    (left < CERTIFICATE_ENDS_SOON).then(|| {
        let end = minute(end);
        let text = format!(
            "An authority in collector.tls.client_ca {verb} {end}. Clients with certificates that it signed connect until \
             these end."
        );
        fine("Client authorities", text)
    })
}

/// Returns the problem of the device port's certificate; `None` without a problem or a certificate.
fn certificate(page: &str, now: Timestamp) -> Option<PartStatus> {
    let begin = tls_time(page, "not_before")?;
    let end = tls_time(page, "not_after")?;
    let (begins, ends) = (minute(begin), minute(end));
    let text = if end <= now {
        format!("It ended {ends}, so no device can connect. Renew the files of collector.tls.")
    } else if begin > now {
        format!("It is valid only from {begins}, so no device can connect until then.")
    } else if end.duration_since(now) < CERTIFICATE_ENDS_SOON {
        format!(
            "It ends {ends}; no device can connect after that. Renew the files of collector.tls."
        )
    } else {
        return None;
    };
    Some(PartStatus {
        part: "Certificate",
        text,
        running: String::new(),
        is_fine: false,
    })
}

fn taken(page: &str, store: &str) -> Option<PartStatus> {
    let is_fine = value(page, "epwatch_collector_store_up")? > 0.0;
    let lag = value(page, "epwatch_collector_wal_lag_seconds")?;
    Some(PartStatus {
        part: "Store",
        text: match is_fine {
            true => format!("{store} takes reports."),
            false => format!("{store} takes no reports; they wait in the WAL."),
        },
        running: match is_fine {
            true => format!("It has all of {lag:.0} s ago and before."),
            false => String::new(),
        },
        is_fine,
    })
}

/// Returns how long a closed bucket's summary has waited to be rebuilt; `None` if none waits.
fn summaries(page: &str) -> Option<PartStatus> {
    let oldest =
        value(page, "epwatch_collector_rebuild_oldest_seconds").filter(|age| *age > 0.0)?;
    let is_fine = oldest < SUMMARIES_LATE.as_secs_f64();
    let then = match is_fine {
        true => "Charts of it lack a backlog until then.",
        false => "Charts of it lack a backlog; the log says why, open_rebuilds_v1 which.",
    };
    Some(PartStatus {
        part: "Summaries",
        text: format!("A closed bucket has to be built again. {then}"),
        running: format!("The oldest one waits for {oldest:.0} s."),
        is_fine,
    })
}

fn judging(page: &str, (window, step): Steps, now: Timestamp) -> Option<PartStatus> {
    let of = |name: &str| value(page, &format!("epwatch_detector_{name}"));
    let last = of("last_evaluation_timestamp_seconds")?;
    let end = clock(of("next_window_end_timestamp_seconds")?);
    let due = of("next_evaluation_timestamp_seconds")?;
    let deadline = of("evaluation_deadline_timestamp_seconds")?;
    let now = now.as_millisecond() as f64 / 1000.0;
    let every = format!("Judges a window of {window} every {step}.");
    let (behind, took) = (of("windows_behind")?, of("last_evaluation_seconds")?);
    let is_slow = took > step.0.as_secs_f64();
    let behind = match behind > 0.0 || is_slow {
        true => format!(
            " The newest window comes first; {behind:.0} earlier ones are still to be judged, and an evaluation takes \
             {took:.1} s of {step}."
        ),
        false => String::new(),
    };
    let is_late = now > deadline;
    let (text, running) = if is_late {
        let text = format!(
            "{every} It is stuck: the window until {end} was due at {}, and is late since {}. Log and /readyz have what it \
             waits for.",
            clock(due),
            clock(deadline)
        );
        (text, format!("That is {:.0} s ago.", now - deadline))
    } else if last <= 0.0 {
        // Every answer with this status already says that nothing is judged yet.
        (every, String::new())
    } else if now >= due {
        let text = format!(
            "{every} The window until {end} is being judged, which is in time until {}.",
            clock(deadline)
        );
        (text, String::new())
    } else {
        let text = format!(
            "{every} The window until {end} is judged at {}.",
            clock(due)
        );
        (text, format!("That is in {}.", length(due - now)))
    };
    Some(PartStatus {
        part: "Detector",
        text: text + &behind,
        running,
        is_fine: !is_late && !is_slow,
    })
}

/// Returns the tasks that ended by themselves since the start of the process; `None` without one.
fn ended_tasks(page: &str) -> Option<PartStatus> {
    let of = |line: &str| {
        let (task, n) = line
            .strip_prefix("epwatch_task_ends_total{task=\"")?
            .split_once("\"} ")?;
        let n = n.parse::<u64>().ok()?;
        (n > 0).then(|| format!("{task} {n} times"))
    };
    let ended: Vec<String> = page.lines().filter_map(of).collect();
    (!ended.is_empty()).then(|| PartStatus {
        part: "Tasks",
        text: format!(
            "Ended by themselves since the start, and were started again: {}. The log has their ends; report them.",
            ended.join(", ")
        ),
        running: String::new(),
        is_fine: false,
    })
}

/// Returns a metric's length of time in one unit that people read at a glance.
fn length(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

fn clock(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
    let at = Timestamp::from_second(seconds as i64);
    at.map_or_else(
        |_| "?".to_owned(),
        |at| at.strftime("%F %T UTC").to_string(),
    )
}

/// Returns the results of notifications on each channel since the start, and the channels that fail now; `None` without
/// a channel.
fn channels(page: &str) -> Option<PartStatus> {
    let mut channels: BTreeMap<&str, Attempts> = BTreeMap::new();
    for line in page.lines() {
        let Some((notifier, result, n)) = attempts(line) else {
            continue;
        };
        let of = channels.entry(notifier).or_default();
        match result {
            "delivered" => of.sent = n,
            "repeated" => of.repeated = n,
            "failed" => of.failed = n,
            "refused" => of.refused = n,
            _ => {}
        }
    }
    channels.remove(HEARTBEAT);
    if channels.is_empty() {
        return None;
    }
    let failing = failing(page);
    let said: Vec<String> = channels.iter().map(|(name, of)| of.words(name)).collect();
    let then = match failing.is_empty() {
        true => String::new(),
        false => format!(
            " {}. Attempts go on for as long as the incidents are open; `epwatch detector test-page` tries a channel.",
            failing.join("; ")
        ),
    };
    Some(PartStatus {
        part: "Channels",
        text: format!("Since the start: {}.{then}", said.join("; ")),
        // Repeats are not news, so they are in the running text.
        running: match channels.values().map(|of| of.repeated).sum::<u64>() {
            0 => String::new(),
            n => format!("Open incidents were repeated {n} times, to channels that forget."),
        },
        is_fine: failing.is_empty(),
    })
}

/// Returns a sentence for each channel whose attempts fail at present, without the full stop.
fn failing(page: &str) -> Vec<String> {
    let since = |notifier: &str| {
        let metric = "epwatch_detector_failing_since_timestamp_seconds";
        let seconds = value(page, &format!("{metric}{{notifier=\"{notifier}\"}}"))?;
        #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
        let at = Timestamp::from_second(seconds as i64).ok()?;
        Some(at.strftime(" since %Y-%m-%d %H:%M UTC").to_string())
    };
    let sentence = |line: &str| {
        let labels = line.strip_prefix("epwatch_detector_failing_notifications{")?;
        let (labels, n) = labels.rsplit_once("} ")?;
        let (notifier, answer) = (label(labels, "notifier")?, label(labels, "answer")?);
        if n == "0" {
            return None;
        }
        let since = since(notifier).unwrap_or_default();
        Some(format!("{notifier} has failed {n} times{since}: {answer}"))
    };
    page.lines().filter_map(sentence).collect()
}

/// Returns the value of a label.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = labels.split_once(&format!("{name}=\""))?;
    value.split('"').next()
}

/// A channel's attempts by result.
#[derive(Debug, Default)]
struct Attempts {
    sent: u64,
    repeated: u64,
    failed: u64,
    refused: u64,
}

impl Attempts {
    fn words(&self, name: &str) -> String {
        let mut text = format!("{name} {} sent", self.sent);
        for (n, what) in [
            (self.failed, "attempts failed and were made again"),
            (self.refused, "attempts were refused and made again"),
        ] {
            if n > 0 {
                text.push_str(&format!(", {n} {what}"));
            }
        }
        text
    }
}

/// Returns notifier, result and number of a line of attempts.
fn attempts(line: &str) -> Option<(&str, &str, u64)> {
    let labels = line.strip_prefix("epwatch_detector_notifications_total{")?;
    let (labels, n) = labels.rsplit_once("} ")?;
    let (notifier, result) = (label(labels, "notifier")?, label(labels, "result")?);
    Some((notifier, result, n.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use epwatch_server::Period;

    use super::*;

    const FINE: &str = "# TYPE epwatch_collector_wal_held_bytes gauge
epwatch_collector_wal_held_bytes 4194304
epwatch_collector_wal_max_bytes 8589934592
epwatch_collector_wal_free_bytes 17179869184
epwatch_collector_wal_min_free_bytes 536870912
epwatch_collector_wal_writable 1
epwatch_collector_wal_lag_seconds 1.2
epwatch_collector_store_up 1
epwatch_collector_rebuild_oldest_seconds 0.0
epwatch_detector_last_evaluation_timestamp_seconds 1800000000.0
epwatch_detector_next_window_end_timestamp_seconds 1800003600.0
epwatch_detector_next_evaluation_timestamp_seconds 1800003720.0
epwatch_detector_evaluation_deadline_timestamp_seconds 1800004620.0
epwatch_detector_last_evaluation_seconds 2.5
epwatch_detector_windows_behind 0
epwatch_task_ends_total{task=\"detector\"} 0
epwatch_detector_notifications_total{notifier=\"heartbeat\",result=\"delivered\"} 40
epwatch_detector_notifications_total{notifier=\"pagerduty\",result=\"delivered\"} 3
epwatch_detector_notifications_total{notifier=\"pagerduty\",result=\"repeated\"} 0
epwatch_detector_notifications_total{notifier=\"pagerduty\",result=\"failed\"} 2
epwatch_detector_notifications_total{notifier=\"pagerduty\",result=\"refused\"} 3
";

    fn facts(page: &str, second: i64) -> Vec<PartStatus> {
        let now = Timestamp::from_second(second).unwrap();
        let hour = Period(Duration::from_secs(3600));
        [
            wal(page),
            taken(page, "The store"),
            summaries(page),
            judging(page, (hour, hour), now),
            channels(page),
            ended_tasks(page),
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
        let bad: Vec<&PartStatus> = facts.iter().filter(|fact| !fact.is_fine).collect();
        assert_eq!(bad.len(), 1, "{facts:?}");
        assert_eq!(bad[0].part, part);
        assert!(bad[0].text.contains(says), "{bad:?}");
    }

    #[test]
    fn what_works_is_said_with_its_room_and_its_next_window() {
        let facts = facts(FINE, 1_800_000_060);
        assert!(facts.iter().all(|fact| fact.is_fine), "{facts:?}");
        let texts: Vec<_> = facts
            .iter()
            .map(|fact| (&*fact.text, &*fact.running))
            .collect();
        let expected = [
            (
                "Takes reports. 4MiB of 8GiB are in use, 16GiB are free on its volume.",
                "",
            ),
            (
                "The store takes reports.",
                "It has all of 1 s ago and before.",
            ),
            (
                "Judges a window of 1h every 1h. The window until 2027-01-15 09:00:00 UTC is judged at 2027-01-15 \
                 09:02:00 UTC.",
                "That is in 61 min.",
            ),
            (
                "Since the start: pagerduty 3 sent, 2 attempts failed and were made again, 3 attempts were refused and \
                 made again.",
                "",
            ),
        ];
        assert_eq!(texts, expected);
        assert_eq!(wal("nothing"), None);
    }

    #[track_caller]
    fn check_detector(page: &str, second: i64, says: &str, is_fine: bool) {
        let detector = facts(page, second).into_iter().nth(2).unwrap();
        assert!(detector.text.contains(says), "{detector:?}");
        assert_eq!(detector.is_fine, is_fine, "{detector:?}");
    }

    #[test]
    fn a_window_is_due_then_being_judged_then_late() {
        check_detector(
            FINE,
            1_800_003_719,
            "is judged at 2027-01-15 09:02:00 UTC",
            true,
        );
        check_detector(
            FINE,
            1_800_003_720,
            "in time until 2027-01-15 09:17:00 UTC",
            true,
        );
        let late = "was due at 2027-01-15 09:02:00 UTC, and is late since 2027-01-15 09:17:00 UTC";
        check_detector(FINE, 1_800_004_621, late, false);
        let none = FINE.replace(
            "last_evaluation_timestamp_seconds 1800000000.0",
            "last_evaluation_timestamp_seconds 0",
        );
        check_detector(
            &none,
            1_800_003_601,
            "Judges a window of 1h every 1h.",
            true,
        );
        let behind = FINE.replace("windows_behind 0", "windows_behind 290");
        check_detector(
            &behind,
            1_800_003_600,
            "290 earlier ones are still to be judged",
            true,
        );
        let slow = behind.replace(
            "last_evaluation_seconds 2.5",
            "last_evaluation_seconds 7200.0",
        );
        check_detector(&slow, 1_800_003_600, "takes 7200.0 s of 1h", false);
    }

    /// Texts that change with time are separate, so that `--watch` does not print for them. Repeats are not news.
    #[test]
    fn only_running_texts_change_with_time_and_repeats() {
        let page = FINE.replace("repeated\"} 0", "repeated\"} 7");
        let page = page.replace("lag_seconds 1.2", "lag_seconds 3.9");
        let (before, after) = (facts(FINE, 1_800_000_060), facts(&page, 1_800_003_500));
        let texts = |facts: &[PartStatus]| -> Vec<String> {
            facts.iter().map(|fact| fact.text.clone()).collect()
        };
        assert_eq!(texts(&before), texts(&after));
        assert!(after[3].running.contains("repeated 7 times"), "{after:?}");
    }

    #[test]
    fn a_library_without_a_pinned_hash_stays_in_sight() {
        assert_eq!(of_unpinned(false), None);
        let fact = of_unpinned(true).unwrap();
        assert!(
            !fact.is_fine && fact.text.contains("--unpinned"),
            "{fact:?}"
        );
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
        let refused = format!(
            "refused\"}} 3
epwatch_detector_failing_notifications{{notifier=\"slack\",answer=\"404\"}} 14
epwatch_detector_failing_since_timestamp_seconds{{notifier=\"slack\"}} {:?}",
            1_800_000_000.0_f64
        );
        check(
            ("refused\"} 3", refused.as_str()),
            "Channels",
            "slack has failed 14 times since 2027-01-15 08:00 UTC: 404. Attempts go on",
        );
        for (begin, end, says) in [
            (1_700_000_000, 1_800_000_000, "It ended 2027-01-15"),
            (1_700_000_000, 1_800_300_000, "It ends 2027-01-18"),
            (1_800_300_000, 1_900_000_000, "valid only from 2027-01-18"),
        ] {
            let page = format!(
                "epwatch_collector_tls_not_before_timestamp_seconds {begin}\n\
                 epwatch_collector_tls_not_after_timestamp_seconds {end}\n"
            );
            let now = Timestamp::from_second(1_800_000_060).unwrap();
            let fact = certificate(&page, now).unwrap();
            assert!(fact.text.contains(says) && !fact.is_fine, "{fact:?}");
            let page = page.replace("tls_not_after", "tls_client_ca_not_after");
            assert_eq!(certificate(&page, now), None);
            let fact = client_authorities(&page, now);
            assert_eq!(fact.is_some(), end < 1_900_000_000, "{fact:?}");
            assert!(fact.is_none_or(|fact| fact.is_fine && fact.text.contains("client_ca")));
        }
        let behind = ("oldest_seconds 0.0", "oldest_seconds 1800.5");
        check(behind, "Summaries", "lack a backlog");
        let stuck = ("1800004620.0", "1800000000.0");
        check(stuck, "Detector", "It is stuck");
        let ended = ("task=\"detector\"} 0", "task=\"detector\"} 2");
        check(ended, "Tasks", "detector 2 times");
    }
}
