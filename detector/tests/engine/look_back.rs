//! What the detector keeps of the look-back between evaluations is what the store would answer:
//! whatever comes, comes late, comes again, is closed, erased or judged out of order.

use std::time::Duration;

use epwatch_detector::source::{Source, Span};
use jiff::Timestamp;

use crate::support::{Place, Reports, TestStore, V1, V2, V2_FALLEN, base};
use crate::windows::after;

const STEPS: usize = 30;

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

/// A store and how far its buckets are closed, in seconds.
struct Course {
    store: TestStore,
    dice: Dice,
    closed_until: i64,
    copies: u64,
}

impl Course {
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
            ..Reports::default()
        };
        reports.store(&self.store, at).await;
    }

    /// The reports of one second come again, a second later each, some of them or all.
    async fn copy(&mut self, second: i64) {
        self.copies += 1;
        let shift = self.copies * 1_000_000_000_000_000;
        let later = self.dice.seconds(3);
        let part = 1 + self.dice.below(3);
        for table in ["report_copies", "reports"] {
            let sql = format!(
                "INSERT INTO {table} SELECT * REPLACE (wal_offset + {shift} AS wal_offset, \
                    received_at + {later} AS received_at, bucket + {later} AS bucket) \
                 FROM {table} AS r WHERE r.bucket = toDateTime({second}) \
                    AND reinterpretAsUInt8(substring(installation, 1, 1)) % {part} = 0"
            );
            self.run(&sql).await;
        }
    }

    /// As the collector's roll-up: copies that do not count are named before a bucket is closed, and
    /// again after a backlog.
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
            "INSERT INTO rollup_watermark VALUES (toDateTime({}, 'UTC'), now64(3))",
            self.closed_until
        );
        self.run(&sql).await;
    }

    async fn delete(&mut self) {
        let sql = format!(
            "INSERT INTO tombstones SELECT installation, now64(3) FROM report_copies \
             ORDER BY sipHash64(installation, {}) LIMIT 1",
            self.dice.below(1_000)
        );
        self.run(&sql).await;
    }

    async fn erase(&self) {
        for table in ["reports", "report_copies"] {
            let sql = format!(
                "ALTER TABLE {table} DELETE WHERE installation IN \
                 (SELECT installation FROM tombstones) SETTINGS mutations_sync = 2"
            );
            self.run(&sql).await;
        }
    }
}

/// What a source tells of a window, in an order of its own.
async fn told(source: &Source, span: &Span) -> Vec<String> {
    let models = source.models(span).await.unwrap();
    let arrivals = source.arrivals(span).await.unwrap();
    let mut fetched = source.fetch(&models, span, &arrivals).await.unwrap();
    let mut told = vec![format!("{models:?}")];
    for found in &models {
        let model = &found.model;
        let new = arrivals.of(model).map(|of_app| {
            let mut newcomers: Vec<_> = of_app.newcomers.iter().collect();
            newcomers.sort_unstable();
            (newcomers, of_app.unproven.len())
        });
        told.push(format!("{new:?}"));
        let read = source.model_windows(model, span, &arrivals, &mut fetched);
        let mut read = read.unwrap();
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
        }
    }
    told
}

#[tokio::test]
async fn what_is_kept_between_evaluations_is_what_the_store_would_answer() {
    let mut course = Course {
        store: TestStore::start().await,
        dice: Dice(1_000_000),
        closed_until: 0,
        copies: 0,
    };
    let base = base();
    let kept = Source::new(course.store.client(), 10_000);
    let mut now = after(base, 40);
    for step in 0..STEPS {
        now = after(now, 1 + course.dice.seconds(3));
        for _ in 0..=course.dice.below(3) {
            let ago = course.dice.seconds(3);
            course.report(after(now, -ago)).await;
        }
        if course.dice.one_in(4) {
            // A backlog, into buckets that may be closed.
            let ago = course.dice.seconds(35);
            course.report(after(now, -ago)).await;
            course.close(0).await;
        }
        if course.dice.one_in(3) {
            let ago = course.dice.seconds(20);
            course.copy(now.as_second() - ago).await;
            course.close(0).await;
        }
        if course.dice.one_in(5) {
            course.delete().await;
        }
        if course.dice.one_in(8) {
            course.erase().await;
        }
        if !course.dice.one_in(4) {
            let until = now.as_second() - 1 - course.dice.seconds(4);
            course.close(until).await;
        }
        // A window may be judged again that is older than the last one.
        let back = if course.dice.one_in(5) {
            course.dice.seconds(8)
        } else {
            0
        };
        let span = Span {
            end: after(now, 1 - back),
            window: Duration::from_secs(8),
            lookback: Duration::from_secs(32),
        };
        let prepared = kept.prepared(&span).await.unwrap();
        let asked = Source::new(course.store.client(), 10_000);
        assert_eq!(
            told(&prepared, &span).await,
            told(&asked, &span).await,
            "step {step}"
        );
    }
    course.store.stop().await;
}
