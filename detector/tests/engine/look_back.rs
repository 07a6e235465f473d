//! The detector's look-back equals the store's answers, whether it is kept between evaluations or not. Reports may come
//! late or again, buckets may close, reports may be erased, and windows may be judged out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epwatch_detector::read::{EvaluationInputs, Source, Span};
use jiff::Timestamp;

use crate::census::{self, Census};
use crate::support::{Place, Reports, TestStore, V1, V2, V2_FALLEN, base};
use crate::windows::after;

const STEPS: usize = 25;

const WINDOW_S: u64 = 8;
const LOOKBACK_S: u64 = 32;

fn span(end: Timestamp) -> Span {
    Span {
        end,
        window: Duration::from_secs(WINDOW_S),
        lookback: Duration::from_secs(LOOKBACK_S),
        stands_alone: false,
    }
}

/// Numbers that look random and are the same each time (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn seconds(&mut self, below: u64) -> i64 {
        i64::try_from(self.below(below)).unwrap()
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let at = self.below(choices.len() as u64);
        choices[usize::try_from(at).unwrap()]
    }
}

/// A store, and the time until which its buckets are closed, in seconds.
struct Course {
    store: TestStore,
    dice: Dice,
    bucket_s: i64,
    closed_until: i64,
    copies: u64,
}

impl Course {
    async fn start(seed: u64, bucket_s: i64) -> Course {
        Course {
            store: TestStore::start().await,
            dice: Dice(seed),
            bucket_s,
            closed_until: 0,
            copies: 0,
        }
    }

    async fn run(&self, sql: &str) {
        self.store.client().query(sql).execute().await.unwrap();
    }

    async fn report(&mut self, at: Timestamp) {
        let dice = &mut self.dice;
        let first = u8::try_from(dice.below(40)).unwrap();
        let version = dice.of(&["1.0.0", "2.0.0"]);
        let place: Place = if version == "1.0.0" {
            V1
        } else {
            dice.of(&[V2, V2_FALLEN])
        };
        let only_failed = dice.one_in(8);
        let reports = Reports {
            devices: first..first + 1 + u8::try_from(dice.below(20)).unwrap(),
            chipset: dice.of(&["SM8635", "SM8650"]),
            version,
            place,
            directive: if dice.one_in(8) { "d" } else { "" },
            requests_npu: !dice.one_in(8),
            is_late: dice.one_in(8),
            failed_starts: u64::from(only_failed),
            only_failed,
            bucket_s: self.bucket_s,
            ..Reports::default()
        };
        reports.store(&self.store, at).await;
    }

    /// Adds new reports like those in a bucket, with every session twice, the second of another version. Some of them
    /// belong to another app.
    async fn twin(&mut self, bucket: i64) {
        self.copies += 1;
        let collector = 1_000 + self.copies;
        let app = self.dice.of(&["camera", "gallery"]);
        let columns: Vec<String> = self
            .store
            .client()
            .query("SELECT name FROM system.columns WHERE database = 'epwatch' AND table = 'reports' ORDER BY position")
            .fetch_all()
            .await
            .unwrap();
        let columns: Vec<String> = columns
            .into_iter()
            .map(|name| match &*name {
                "session_uid" => "arrayConcat(session_uid, [2])".to_owned(),
                "session_model_version" => {
                    "arrayConcat(session_model_version, ['3.0.0'])".to_owned()
                }
                "session_fingerprint_exact" => {
                    "arrayConcat(session_fingerprint_exact, [30])".to_owned()
                }
                "app_id" => format!("'{app}'"),
                "collector_id" => collector.to_string(),
                "sequence" => format!("sequence + {collector} * 10000000000"),
                session if session.starts_with("session_") => {
                    format!("arrayConcat({session}, {session})")
                }
                _ => name,
            })
            .collect();
        let reports = format!(
            "INSERT INTO reports SELECT {} FROM reports \
             WHERE bucket = toDateTime({bucket}) AND length(session_uid) = 1",
            columns.join(", ")
        );
        let copies = format!(
            "INSERT INTO report_copies SELECT installation, stream_id, sequence, received_at, \
                collector_id, wal_offset, bucket, app_id, toUInt32(0) \
             FROM reports WHERE collector_id = {collector}"
        );
        // The collector writes copies first, but here they are made from the reports.
        self.run(&reports).await;
        self.run(&copies).await;
    }

    /// Some or all reports of one bucket come again, each one or two buckets later.
    async fn copy(&mut self, bucket: i64) {
        self.copies += 1;
        let nth = self.copies;
        let later = self.dice.seconds(3) * self.bucket_s;
        let part = 1 + self.dice.below(3);
        for table in ["report_copies", "reports"] {
            let sql = format!(
                "INSERT INTO {table} SELECT * REPLACE (\
                    cityHash64(collector_id, wal_offset, {nth}) AS wal_offset, \
                    received_at + {later} AS received_at, bucket + {later} AS bucket) \
                 FROM {table} AS r WHERE r.bucket = toDateTime({bucket}) \
                    AND reinterpretAsUInt8(substring(installation, 1, 1)) % {part} = 0"
            );
            self.run(&sql).await;
        }
    }

    /// Stores some rows of one bucket twice.
    async fn repeat(&mut self, bucket: i64) {
        let sql = format!(
            "INSERT INTO reports SELECT * FROM reports WHERE bucket = toDateTime({bucket}) LIMIT 3 \
             SETTINGS insert_deduplicate = 0"
        );
        self.run(&sql).await;
    }

    /// Closes buckets like the collector's roll-up. Surplus copies and repeated rows are named before a bucket is
    /// closed, and again after a backlog.
    async fn close(&mut self, until: i64) {
        self.closed_until = self.closed_until.max(until);
        let sql = format!(
            "INSERT INTO surplus_copies (bucket, collector_id, wal_offset) \
             SELECT bucket, collector_id, wal_offset FROM report_copies \
             WHERE bucket < toDateTime({0}, 'UTC') \
             AND (installation, stream_id, sequence, received_at, collector_id, wal_offset) NOT IN \
             (SELECT installation, stream_id, sequence, \
                     (min((received_at, collector_id, wal_offset)) AS first).1, first.2, first.3 \
              FROM report_copies GROUP BY installation, stream_id, sequence)",
            self.closed_until
        );
        self.run(&sql).await;
        let sql = format!(
            "INSERT INTO repeated_rows SELECT bucket, collector_id, wal_offset, _block_number, _block_offset \
             FROM reports WHERE bucket < toDateTime({0}, 'UTC') ORDER BY _block_number, _block_offset \
             LIMIT 1, 1000000 BY collector_id, wal_offset",
            self.closed_until
        );
        self.run(&sql).await;
        let sql = format!(
            "INSERT INTO rollup_watermark VALUES (toDateTime({}, 'UTC'), now64(3))",
            self.closed_until
        );
        self.run(&sql).await;
    }

    async fn delete(&mut self) {
        let sql = format!(
            "INSERT INTO hidden_installations (installation, tombstoned_at) SELECT installation, now64(3) FROM report_copies \
             ORDER BY sipHash64(installation, {}) LIMIT 1",
            self.dice.below(1_000)
        );
        self.run(&sql).await;
    }

    async fn erase(&self) {
        for table in ["reports", "report_copies"] {
            let sql = format!(
                "ALTER TABLE {table} DELETE WHERE installation IN \
                 (SELECT installation FROM hidden_installations) SETTINGS mutations_sync = 2"
            );
            self.run(&sql).await;
        }
    }
}

/// The content of a window, sorted.
async fn told(inputs: &EvaluationInputs) -> Vec<String> {
    let models = &inputs.models;
    if models.is_empty() {
        // An evaluation reads no further data.
        return Vec::new();
    }
    let mut windows = inputs.windows(models).await.unwrap();
    let mut told = vec![format!("{models:?}")];
    for found in models {
        let model = &found.model;
        let new = inputs.arrivals.of(model).map(|of_app| {
            let mut newcomers: Vec<_> = of_app.iter().collect();
            newcomers.sort_unstable();
            newcomers
        });
        told.push(format!("{new:?}"));
        let mut read = windows.remove(model).unwrap().unwrap();
        read.census.sort_by_key(|one| {
            (
                one.model_version.clone(),
                one.chipset.clone(),
                one.placement.fingerprint,
            )
        });
        told.extend(read.census.iter().map(|one| format!("{one:?}")));
        told.push(format!("{:?}", read.versions));
        for cohort in &read.cohorts {
            let votes = cohort.votes.iter();
            let proven = votes.filter(|vote| vote.is_proven).count();
            told.push(format!("{:?} {} {proven}", cohort.key, cohort.votes.len()));
            let mut votes: Vec<String> = cohort.votes.iter().map(|v| format!("{v:?}")).collect();
            votes.sort_unstable();
            told.extend(votes);
            let voteless = &cohort.voteless;
            let directed = voteless
                .only_directed
                .iter()
                .map(|(firmware, devices)| (firmware, devices.iter().collect::<BTreeSet<_>>()));
            let directed: BTreeMap<_, _> = directed.collect();
            told.push(format!("{:?} {directed:?}", cohort.histograms));
            told.push(format!("{} {}", voteless.directed, voteless.unproven));
            told.push(format!("{:?}", cohort.device_events));
        }
    }
    told
}

/// Returns the census like [`census::of`], but from a source.
async fn counted(inputs: &EvaluationInputs) -> Census {
    let mut counted = Census::default();
    if inputs.models.is_empty() {
        return counted;
    }
    let mut windows = inputs.windows(&inputs.models).await.unwrap();
    for found in &inputs.models {
        let model = &found.model;
        let read = windows.remove(model).unwrap().unwrap();
        for cohort in read.cohorts {
            let (votes, key) = (cohort.votes, cohort.key);
            if !votes.is_empty() {
                let proven = votes.iter().filter(|vote| vote.is_proven).count();
                let name = (model.clone(), key.model_version, key.chipset);
                counted.votes.insert(name, (votes.len(), proven));
            }
        }
        if found.sessions == 0 {
            // The model only failed to start, and the census leaves such models out.
            continue;
        }
        for one in read.census {
            let (placement, method) = (&one.placement, &one.placement.method);
            let line = format!(
                "{} {} {} {} {} {} {} {} {} {} {:?} {} {}",
                one.model_version,
                one.chipset,
                method.graph_kind,
                method.source,
                method.fingerprint_algorithm,
                placement.fingerprint,
                placement.runtime,
                placement.n_nodes,
                placement.npu_nodes,
                placement.cpu_nodes,
                placement.npu_macs_share,
                one.devices,
                one.devices_before
            );
            let lines = counted.placements.entry(model.clone()).or_default();
            lines.push(line);
            lines.sort();
        }
        let versions = read.versions.into_iter();
        let versions = versions.map(|seen| (seen.version, seen.first_seen_ms));
        counted.versions.insert(model.clone(), versions.collect());
        let new = inputs.arrivals.of(model).unwrap();
        let app = (model.app_id.clone(), model.environment.clone());
        counted.new.insert(app, new.iter().copied().collect());
        counted
            .models
            .push((model.clone(), found.cohorts, found.sessions));
    }
    counted
}

/// Returns the store's answer about the models of the window.
async fn answered(store: &TestStore, span: &Span) -> Census {
    let mut answered = census::of(&store.client(), span).await;
    let models: BTreeSet<_> = answered.models.iter().map(|row| row.0.clone()).collect();
    let apps: BTreeSet<_> = models
        .iter()
        .map(|model| (model.app_id.clone(), model.environment.clone()))
        .collect();
    answered
        .placements
        .retain(|model, _| models.contains(model));
    answered.versions.retain(|model, _| models.contains(model));
    answered.new.retain(|app, _| apps.contains(app));
    answered
}

/// Applies random changes to a store one after another, with a comparison after each.
async fn kept_is_asked(seed: u64, bucket_s: i64) {
    let mut course = Course::start(seed, bucket_s).await;
    let kept = Source::new(course.store.client(), 10_000);
    // A source that holds nothing reads the window's reports each time.
    let holds_nothing = Source::holding(course.store.client(), 10_000, 0);
    let bucket_of = |at: Timestamp| at.as_second() - at.as_second() % bucket_s;
    let mut now = after(base(), 40);
    for step in 0..STEPS {
        now = after(now, 1 + course.dice.seconds(3));
        for _ in 0..=course.dice.below(3) {
            let ago = course.dice.seconds(3);
            course.report(after(now, -ago)).await;
        }
        if course.dice.one_in(4) {
            // A backlog arrives in buckets that may be closed.
            let ago = course.dice.seconds(35);
            course.report(after(now, -ago)).await;
            course.close(0).await;
        }
        if course.dice.one_in(4) {
            let ago = course.dice.seconds(20);
            course.twin(bucket_of(after(now, -ago))).await;
        }
        if course.dice.one_in(3) {
            let ago = course.dice.seconds(20);
            course.copy(bucket_of(after(now, -ago))).await;
            course.close(0).await;
        }
        if course.dice.one_in(5) {
            course.delete().await;
        }
        if course.dice.one_in(8) {
            course.erase().await;
        }
        if !course.dice.one_in(4) {
            let ago = 1 + course.dice.seconds(4);
            course.close(bucket_of(after(now, -ago))).await;
        }
        if course.dice.one_in(6) {
            course.repeat(bucket_of(now)).await;
        }
        // A window older than the last one may be judged again.
        let back = if course.dice.one_in(5) {
            course.dice.seconds(8)
        } else {
            0
        };
        let span = span(after(now, 1 - back));
        let kept = kept.begin(&span).await.unwrap();
        let asked = Source::new(course.store.client(), 10_000);
        let asked = asked.begin(&span).await.unwrap();
        let expected = told(&asked).await;
        let read = holds_nothing.begin(&span).await.unwrap();
        for inputs in [&kept, &read] {
            let told = told(inputs).await;
            let differs = told.iter().zip(&expected).find(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed}, step {step}");
            assert_eq!(told.len(), expected.len(), "seed {seed}, step {step}");
        }
        assert_eq!(
            counted(&kept).await,
            answered(&course.store, &span).await,
            "seed {seed}, step {step}"
        );
    }
    course.store.stop().await;
}

#[tokio::test]
async fn what_is_kept_between_evaluations_is_what_the_store_would_answer() {
    kept_is_asked(1_000_000, 1).await;
}

#[tokio::test]
async fn what_is_kept_answers_for_windows_that_begin_within_a_bucket() {
    kept_is_asked(2_000_000, 3).await;
}

/// Returns how many buckets of the look-back an evaluation reads, and for how many it reads rows of the window.
async fn buckets_read(source: &Source, span: &Span) -> (u64, u64) {
    let before = source.held_look_back().await.unwrap();
    source.begin(span).await.unwrap();
    let after = source.held_look_back().await.unwrap();
    (
        after.buckets_read - before.buckets_read,
        after.window_buckets_read - before.window_buckets_read,
    )
}

#[tokio::test]
async fn only_buckets_that_are_new_or_changed_are_read_again() {
    let store = TestStore::start().await;
    let now = after(base(), 100);
    // There are ten buckets of twenty devices. The very first device is only in the last two.
    for ago in 1..=10 {
        let reports = Reports {
            devices: if ago <= 2 { 0..20 } else { 1..20 },
            ..Reports::default()
        };
        reports.store(&store, after(now, -ago)).await;
    }
    let source = Source::new(store.client(), 10_000);
    assert_eq!(
        buckets_read(&source, &span(now)).await,
        (10, 8),
        "the first time"
    );
    assert_eq!(buckets_read(&source, &span(now)).await, (0, 0), "as it was");

    Reports::default().store(&store, now).await;
    let next = span(after(now, 1));
    assert_eq!(buckets_read(&source, &next).await, (1, 1), "a new bucket");

    let late = Reports {
        devices: 50..51,
        ..Reports::default()
    };
    late.store(&store, after(now, -5)).await;
    assert_eq!(buckets_read(&source, &next).await, (1, 1), "a late report");

    let deleted = "INSERT INTO hidden_installations (installation, tombstoned_at) SELECT installation, now64(3) FROM report_copies \
        WHERE reinterpretAsUInt8(substring(installation, 1, 1)) = 0 LIMIT 1";
    store.client().query(deleted).execute().await.unwrap();
    assert_eq!(buckets_read(&source, &next).await, (3, 3), "a deletion");
    let erased = "ALTER TABLE reports DELETE WHERE installation IN \
        (SELECT installation FROM hidden_installations) SETTINGS mutations_sync = 2";
    store.client().query(erased).execute().await.unwrap();
    assert_eq!(buckets_read(&source, &next).await, (0, 0), "its erasure");

    let restarted = Source::new(store.client(), 10_000);
    assert_eq!(buckets_read(&restarted, &next).await, (11, 8), "a restart");
    store.stop().await;
}

/// A hundred thousand made-up installations in two buckets, of which the collector admitted a thousand.
const FLOOD: &str = "INSERT INTO reports (collector_id, wal_offset, received_at, bucket, installation, \
        stream_id, sequence, app_id, environment, chipset, session_uid, session_model_id, \
        session_model_version, session_directive_id, session_created_at, session_requests_npu, session_graph_kind, \
        session_placement_source, session_fingerprint_algorithm, session_fingerprint_exact, \
        session_fingerprint_normalised, session_n_nodes, session_npu_nodes, session_cpu_nodes, \
        session_cpu_benign_nodes, session_npu_macs_share, session_macs_attributed, session_reasons, is_unproven) \
    SELECT 9, number, toDateTime64(AT, 3) - number % 2, toDateTime(AT) - number % 2, \
        MD5(toString(number)), 1, number, 'camera', 'production', 'SM8650', [1], ['segmenter'], \
        ['2.0.0'], [''], [toDateTime64(AT, 3)], [true], ['jit'], ['assignment_api'], [1], [21], [21], [31], [25], [6], [1], \
        [0.74], [1.0], [[]], number >= 1000 \
    FROM numbers(OFFSET, 10000)";

#[tokio::test]
async fn a_flood_of_installations_takes_little_memory_or_is_not_kept_and_changes_no_answer() {
    let store = TestStore::start().await;
    let now = after(base(), 100);
    for ago in [2, 12, 20, 28] {
        Reports::default().store(&store, after(now, -ago)).await;
    }
    let kept = Source::new(store.client(), 200_000);
    let small = Source::holding(store.client(), 200_000, 1 << 20);
    kept.begin(&span(now)).await.unwrap();
    let at = after(now, -1).as_second().to_string();
    for part in 0..10 {
        let flood = FLOOD.replace("AT", &at);
        let flood = flood.replace("OFFSET", &(part * 10_000).to_string());
        store.client().query(&flood).execute().await.unwrap();
    }
    // In the flood's window, and in the one after it.
    for end in [now, after(now, 8)] {
        let span = span(end);
        let asked = Source::new(store.client(), 200_000);
        let answer = told(&asked.begin(&span).await.unwrap()).await;
        for source in [&kept, &small] {
            let inputs = source.begin(&span).await.unwrap();
            assert!(told(&inputs).await == answer, "window {end}");
            let counted = counted(&inputs).await;
            assert!(counted == answered(&store, &span).await, "window {end}");
            let votes: usize = counted.votes.values().map(|(votes, _)| votes).sum();
            assert!(
                votes < 1_100,
                "{votes} votes: unproven installations have none"
            );
        }
    }
    let held = kept.held_look_back().await.unwrap().bytes;
    assert!((1 << 20..8 << 20).contains(&held), "{held} bytes");
    assert_eq!(small.held_look_back().await.unwrap().bytes, 0);
    store.stop().await;
}

/// Reports that came twice, with the longest possible numbers.
const DOUBLED: &str = "INSERT INTO TABLE (installation, stream_id, sequence, received_at, bucket, \
        collector_id, wal_offset COLUMNS) \
    SELECT MD5(toString(intDiv(number, 2))), 1, 1, toDateTime64(AT, 3), toDateTime(AT), \
        18000000000000000000, 18000000000000000000 + number VALUES FROM numbers(FROM, COUNT)";

/// The longest query is just as long as an engine accepts. With more copies, the query names none.
#[tokio::test]
async fn copies_of_open_buckets_do_not_count_however_many_they_are() {
    let store = TestStore::start().await;
    let now = after(base(), 100);
    Reports::default().store(&store, after(now, -2)).await;
    let at = after(now, -1).as_second().to_string();
    let mut from = 0;
    for count in [2 * 2_500, 2] {
        let doubled = DOUBLED
            .replace("AT", &at)
            .replace("FROM,", &format!("{from},"))
            .replace("COUNT", &count.to_string());
        from += count;
        let of_copies = doubled.replace("TABLE", "report_copies");
        let of_copies = of_copies.replace(" COLUMNS", "").replace(" VALUES", "");
        let of_reports = doubled.replace("TABLE", "reports");
        let of_reports = of_reports.replace(" COLUMNS", ", app_id, environment, chipset");
        let of_reports = of_reports.replace(" VALUES", ", 'camera', 'production', 'SM8635'");
        store.client().query(&of_copies).execute().await.unwrap();
        store.client().query(&of_reports).execute().await.unwrap();
        let span = span(now);
        let asked = Source::new(store.client(), 10_000);
        let inputs = asked.begin(&span).await.unwrap();
        assert!(
            counted(&inputs).await == answered(&store, &span).await,
            "{from} copies"
        );
        let model = &inputs.models[0].model;
        let newcomers = inputs.arrivals.of(model).unwrap().len();
        assert_eq!(newcomers, 30 + from / 2);
    }
    store.stop().await;
}
