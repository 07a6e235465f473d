//! Says that an encoded report is sound, in one pass over its bytes and without building it.
//!
//! For a receiver that keeps the bytes and only has to know that they can be read later. It
//! accepts only what [`Report::parse`](crate::Report::parse) accepts, and all that senders of this
//! version make; whatever it is not sure of (a field merged from two places, more entries than its
//! small sets hold, anything wrong) it leaves to the full parser, which also says what is wrong.

mod fields;
mod origin;
mod series;
mod session;

use self::fields::{Few, Once, each_field, known};
use crate::failure::StartPhase;
use crate::ids::{InstallationId, ReportKey, Sequence, StreamId};
use crate::placement::MAX_EPS;
use crate::reason::ReasonCode;
use crate::report::{
    MAX_BOOT_ID_BYTES, MAX_INTERVAL_MS, MAX_REPORT_BYTES, MAX_RUN_ERRORS, MAX_SELF_TESTS,
    MAX_START_FAILURES,
};

/// Sessions, ended streams and sessions referred to that one pass keeps track of.
const MOST_IDS: usize = 16;
/// Series that one pass keeps track of.
const MOST_SERIES: usize = 24;
/// Sessions of a report that are compared with those of the one before: a phone has few models loaded.
const REMEMBERED_SESSIONS: usize = 4;

/// What a receiver needs of a sound report; borrowed from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoundReport<'a> {
    /// What it is known by.
    pub key: ReportKey,
    /// `app.id`.
    pub app_id: &'a str,
    /// `app.environment`.
    pub environment: &'a str,
}

/// Checks the reports of one call, one after the other. They mostly come from one device, and what says
/// so, and which models it runs where, is then the same bytes in each, which are checked once.
#[derive(Debug, Default)]
pub struct QuickCheck<'a> {
    last: LastReport<'a>,
    sets: Sets<'a>,
}

/// Parts of the last report.
#[derive(Debug, Default)]
struct LastReport<'a> {
    app: Last<'a, (&'a str, &'a str)>,
    device: Last<'a, ()>,
    runtime: Last<'a, ()>,
    sdk: Last<'a, ()>,
    /// By their places in the report.
    sessions: [session::LastSession<'a>; REMEMBERED_SESSIONS],
}

/// What must not come twice in a report, or must be there. Their memory serves report after report.
#[derive(Debug)]
struct Sets<'a> {
    ended: Few<u64, MOST_IDS>,
    sessions: Few<u64, MOST_IDS>,
    referred: Few<u64, MOST_IDS>,
    series: Few<series::Series<'a>, MOST_SERIES>,
}

impl Default for Sets<'_> {
    fn default() -> Self {
        Self {
            ended: Few::new(0),
            sessions: Few::new(0),
            referred: Few::new(0),
            series: Few::new(series::Series::default()),
        }
    }
}

impl Sets<'_> {
    fn clear(&mut self) {
        self.ended.clear();
        self.sessions.clear();
        self.referred.clear();
        self.series.clear();
    }
}

/// Bytes that were found sound, and what they say.
#[derive(Debug, Default)]
struct Last<'a, T>(Option<(&'a [u8], T)>);

impl<'a, T: Copy> Last<'a, T> {
    #[inline]
    fn check(&mut self, bytes: &'a [u8], check: impl FnOnce(&'a [u8]) -> Option<T>) -> Option<T> {
        match self.0 {
            Some((last, said)) if last == bytes => Some(said),
            _ => {
                let said = check(bytes)?;
                self.0 = Some((bytes, said));
                Some(said)
            }
        }
    }
}

impl<'a> QuickCheck<'a> {
    /// Returns what a receiver needs if the report is surely sound. `None` says nothing: ask
    /// [`Report::parse`](crate::Report::parse).
    pub fn sound(&mut self, report: &'a [u8]) -> Option<SoundReport<'a>> {
        if report.len() > MAX_REPORT_BYTES {
            return None;
        }
        let Self { last, sets } = self;
        sets.clear();
        let mut key = Once::NEVER;
        let mut app = Once::NEVER;
        let (mut device, mut runtime, mut sdk, mut health) =
            (Once::NEVER, Once::NEVER, Once::NEVER, Once::NEVER);
        let (mut self_tests, mut start_failures, mut run_errors) = (0, 0, 0);
        each_field(report, |number, value| match number {
            1 => key.set(self::key(value.bytes()?)),
            2 => sets.ended.add(ended_stream(value.bytes()?)?),
            3 | 4 => value.unix_ms(),
            5 => (value.u64()? <= MAX_INTERVAL_MS).then_some(()),
            6 => value.is_text(MAX_BOOT_ID_BYTES),
            7 => value.u64().map(|_| ()),
            8 => app.set(last.app.check(value.bytes()?, origin::app)),
            9 => device.set(last.device.check(value.bytes()?, origin::device)),
            10 => runtime.set(last.runtime.check(value.bytes()?, origin::runtime)),
            11 => sdk.set(last.sdk.check(value.bytes()?, origin::sdk)),
            12 => {
                let place = sets.sessions.entries().len().min(REMEMBERED_SESSIONS - 1);
                let last = &mut last.sessions[place];
                sets.sessions.add(session::session(value.bytes()?, last)?)
            }
            13 => {
                let one = series::series(value.bytes()?)?;
                sets.referred.note(one.session_uid)?;
                sets.series.add(one)
            }
            14 => {
                count(&mut self_tests, MAX_SELF_TESTS)?;
                sets.referred.note(self_test(value.bytes()?)?)
            }
            15 => {
                count(&mut start_failures, MAX_START_FAILURES)?;
                start_failure(value.bytes()?)
            }
            16 => {
                count(&mut run_errors, MAX_RUN_ERRORS)?;
                sets.referred.note(run_error(value.bytes()?)?)
            }
            17 => health.set(origin::health(value.bytes()?)),
            _ => Some(()),
        })?;
        let key: ReportKey = key.get()?;
        let (app_id, environment) = app.get()?;
        device.get()?;
        runtime.get()?;
        sdk.get()?;
        health.get()?;
        let Sets {
            ended,
            sessions,
            referred,
            ..
        } = sets;
        let knows = |uid| sessions.entries().contains(uid);
        let is_whole =
            referred.entries().iter().all(knows) && !ended.entries().contains(&key.stream.0);
        is_whole.then_some(SoundReport {
            key,
            app_id,
            environment,
        })
    }
}

/// Counts one entry more; `None` beyond `most`.
fn count(n: &mut usize, most: usize) -> Option<()> {
    *n += 1;
    (*n <= most).then_some(())
}

fn key(bytes: &[u8]) -> Option<ReportKey> {
    let mut installation = None;
    let (mut stream, mut sequence) = (0, 0);
    each_field(bytes, |number, value| {
        match number {
            1 => installation = Some(value.bytes()?.try_into().ok()?),
            2 => stream = value.fixed64()?,
            3 => sequence = value.u64()?,
            _ => {}
        }
        Some(())
    })?;
    Some(ReportKey {
        installation: InstallationId::from_bytes(installation?),
        stream: StreamId(stream),
        sequence: Sequence::new(sequence)?,
    })
}

fn ended_stream(bytes: &[u8]) -> Option<u64> {
    let mut stream = 0;
    each_field(bytes, |number, value| {
        match number {
            1 => stream = value.fixed64()?,
            2 | 3 => drop(value.u64()?),
            _ => {}
        }
        Some(())
    })?;
    Some(stream)
}

fn self_test(bytes: &[u8]) -> Option<u64> {
    let mut uid = 0;
    let mut has_input = false;
    each_field(bytes, |number, value| {
        match number {
            1 => uid = value.fixed64()?,
            2 => has_input = !value.text(64)?.is_empty(),
            3 | 6 => drop(value.finite()?),
            4 | 5 => value.hash(16)?,
            7 => {
                let cosine = f64::from_bits(value.fixed64()?);
                (-1.0..=1.0).contains(&cosine).then_some(())?;
            }
            8 => drop(value.bool()?),
            9 => drop(value.i32()?),
            _ => {}
        }
        Some(())
    })?;
    (uid != 0 && has_input).then_some(uid)
}

fn start_failure(bytes: &[u8]) -> Option<()> {
    let mut model = Once::NEVER;
    let (mut n_eps, mut phase, mut reason, mut how_often) = (0, 0, 0, 0);
    each_field(bytes, |number, value| {
        match number {
            1 => model.set(session::model(value.bytes()?))?,
            2 => {
                count(&mut n_eps, MAX_EPS)?;
                session::ep_name(value)?;
            }
            3 => phase = value.i32()?,
            4 => reason = value.i32()?,
            5 => drop(value.i32()?),
            6 => value.is_text(512)?,
            7 => how_often = value.u64()?,
            _ => {}
        }
        Some(())
    })?;
    model.get()?;
    known!(StartPhase, phase)?;
    known!(ReasonCode, reason)?;
    (how_often > 0).then_some(())
}

fn run_error(bytes: &[u8]) -> Option<u64> {
    let (mut uid, mut how_often) = (0, 0);
    each_field(bytes, |number, value| {
        match number {
            1 => uid = value.fixed64()?,
            2 => drop(value.i32()?),
            3 => how_often = value.u64()?,
            _ => {}
        }
        Some(())
    })?;
    (uid != 0 && how_often > 0).then_some(uid)
}
