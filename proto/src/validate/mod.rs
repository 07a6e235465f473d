//! Validates an encoded report in one pass over its bytes, without building it.
//!
//! The collector keeps the bytes, so it only checks that they can be parsed later. The validator walks the parser's
//! tables. It accepts only reports that [`Report::parse`](crate::Report::parse) accepts, and accepts every report that
//! senders of this version make. Uncertain cases are left to the full parser: a field merged from two places, more
//! entries than the small sets hold, anything invalid. The parser also names the refused field.

use crate::device::{App, Device, Runtime, Sdk};
use crate::failure::{RunErrors, SelfTest};
use crate::ids::ReportKey;
use crate::latency::{LatencySeries, SeriesKey, fits_interval};
use crate::message::{CheckedMessage, Few, Fields, Last, once};
use crate::report::{
    EndedStream, MAX_REPORT_BYTES, MAX_RUN_ERRORS, MAX_SELF_TESTS, report_fields,
    report_fields::field,
};
use crate::session::LastSession;
use crate::wire::each_field;

/// Sessions, ended streams and sessions referred to that one pass keeps track of.
const MOST_IDS: usize = 16;
/// Number of series that one pass keeps track of.
const MOST_SERIES: usize = 24;
/// Number of sessions of a report that are compared with the sessions of the report before: a phone has few models
/// loaded.
const REMEMBERED_SESSIONS: usize = 4;

/// The part of a valid report that a receiver needs, borrowed from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields of the report by their names")]
pub struct ValidReport<'a> {
    pub key: ReportKey,
    pub app_id: &'a str,
    pub environment: &'a str,
}

/// Validates the reports of one call, one after the other. They mostly come from one device, so the
/// bytes that describe it and its models are equal in each, and are checked once.
#[derive(Debug, Default)]
pub struct FastValidator<'a> {
    last: LastReport<'a>,
    sets: Sets<'a>,
}

/// Valid parts of the last report.
#[derive(Debug, Default)]
struct LastReport<'a> {
    app: Last<'a, App>,
    device: Last<'a, Device>,
    runtime: Last<'a, Runtime>,
    sdk: Last<'a, Sdk>,
    /// Sessions by their positions in the report.
    sessions: [LastSession<'a>; REMEMBERED_SESSIONS],
}

/// Ids that must not occur twice in a report, or must occur. The sets' memory is reused for each report.
#[derive(Debug, Default)]
struct Sets<'a> {
    ended: Few<u64, MOST_IDS>,
    sessions: Few<u64, MOST_IDS>,
    referred: Few<u64, MOST_IDS>,
    series: Few<SeriesKey<'a>, MOST_SERIES>,
}

impl Sets<'_> {
    fn clear(&mut self) {
        self.ended.clear();
        self.sessions.clear();
        self.referred.clear();
        self.series.clear();
    }
}

impl<'a> FastValidator<'a> {
    /// Returns the report if it is surely valid. After `None`, [`Report::parse`](crate::Report::parse) decides.
    pub fn validate(&mut self, report: &'a [u8]) -> Option<ValidReport<'a>> {
        if report.len() > MAX_REPORT_BYTES {
            return None;
        }
        let Self { last, sets } = self;
        sets.clear();
        let mut fields = report_fields::Seen::default();
        let mut busiest_us = 0.0_f64;
        each_field(report, |number, value| match number {
            field::ended_streams => sets.ended.add(EndedStream::check(value.bytes()?)?),
            field::app => once(&mut fields.app, last.app.check(value.bytes()?)),
            field::device => once(&mut fields.device, last.device.check(value.bytes()?)),
            field::runtime => once(&mut fields.runtime, last.runtime.check(value.bytes()?)),
            field::sdk => once(&mut fields.sdk, last.sdk.check(value.bytes()?)),
            field::sessions => {
                let place = sets.sessions.entries().len().min(REMEMBERED_SESSIONS - 1);
                let uid = last.sessions[place].check(value.bytes()?)?;
                sets.sessions.add(uid)
            }
            field::series => {
                let series = LatencySeries::check(value.bytes()?)?;
                busiest_us = busiest_us.max(series.busy_us);
                sets.referred.note(series.key.session_uid)?;
                sets.series.add(series.key)
            }
            field::self_tests => {
                fields.self_tests += 1;
                sets.referred.note(SelfTest::check(value.bytes()?)?)
            }
            field::run_errors => {
                fields.run_errors += 1;
                sets.referred.note(RunErrors::check(value.bytes()?)?)
            }
            _ => fields.see(number, value),
        })?;
        let is_whole = fields.is_whole()
            && fields.self_tests <= MAX_SELF_TESTS
            && fields.run_errors <= MAX_RUN_ERRORS
            && fits_interval(busiest_us, fields.interval_length_ms).is_ok();
        let key = fields.key?;
        let (app_id, environment) = fields.app?;
        let is_known = |uid| sets.sessions.entries().contains(uid);
        let is_valid = is_whole
            && sets.referred.entries().iter().all(is_known)
            && !sets.ended.entries().contains(&key.stream.0);
        is_valid.then_some(ValidReport {
            key,
            app_id,
            environment,
        })
    }
}
