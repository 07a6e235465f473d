//! Disturbed uploads: reports come late, from devices with wrong clocks, or twice.

use super::family::{FamilyReport, WINDOW_MS};
use super::spec::FamilySpec;
use super::{Benign, Circumstance, Truth};
use epwatch_fleet::chance::Chance;

/// Share of the devices with disturbed uploads.
const SHARE: f64 = 0.3;

/// Shifts the clocks and receive times of a device, or repeats its reports, as the truth has it.
pub(super) fn disturbed(
    spec: &FamilySpec,
    device: u64,
    reports: Vec<FamilyReport>,
) -> Vec<FamilyReport> {
    let mut chance = Chance::split(spec.seed, "uploads", device);
    let luck = chance.unit();
    match spec.circumstance {
        Some(Circumstance::ClocksOfAnotherYear) if luck < 0.2 => {
            return wrong_clocks(reports, 400.0, &mut chance);
        }
        Some(Circumstance::DaysLate) if luck < SHARE => {
            return late(reports, (1.5, 2.3), &mut chance);
        }
        _ => {}
    }
    let Truth::Benign(benign) = spec.truth else {
        return reports;
    };
    if luck >= SHARE {
        return reports;
    }
    match benign {
        Benign::LateReports => late(reports, (0.1, 5.0), &mut chance),
        Benign::WrongClocks => wrong_clocks(reports, 5.0 * 365.0, &mut chance),
        Benign::DuplicateUploads => twice(reports, &mut chance),
        _ => reports,
    }
}

/// Delays reports by some days in the spool. Reports older than two days have no vote.
fn late(
    mut reports: Vec<FamilyReport>,
    days: (f64, f64),
    chance: &mut Chance,
) -> Vec<FamilyReport> {
    for report in &mut reports {
        #[expect(clippy::cast_possible_truncation, reason = "days")]
        let delay = (chance.between(days) * WINDOW_MS as f64) as i64;
        report.received_ms += delay;
        if let Some(wall) = &mut report.sent.wall_unix_ms {
            *wall += delay;
        }
    }
    reports
}

/// Makes the wall clock wrong by up to `days`. On every third device it is corrected between the interval and its
/// sending.
fn wrong_clocks(
    mut reports: Vec<FamilyReport>,
    days: f64,
    chance: &mut Chance,
) -> Vec<FamilyReport> {
    #[expect(clippy::cast_possible_truncation, reason = "years")]
    let wrong = (chance.between((-days, days)) * WINDOW_MS as f64) as i64;
    let set_right = chance.happens(1.0 / 3.0);
    for report in &mut reports {
        report.report.interval_start_unix_ms += wrong;
        report.report.interval_end_unix_ms += wrong;
        for session in &mut report.report.sessions {
            session.created_at_unix_ms += wrong;
        }
        if let Some(wall) = report.sent.wall_unix_ms.as_mut().filter(|_| !set_right) {
            *wall += wrong;
        }
    }
    reports
}

/// Repeats each report minutes or days later, as after a lost ack.
fn twice(mut reports: Vec<FamilyReport>, chance: &mut Chance) -> Vec<FamilyReport> {
    let again: Vec<FamilyReport> = reports
        .iter()
        .map(|report| {
            let mut again = report.clone();
            #[expect(clippy::cast_possible_truncation, reason = "days")]
            let delay = (chance.between((0.001, 2.0)) * WINDOW_MS as f64) as i64;
            again.received_ms += delay;
            if let Some(wall) = &mut again.sent.wall_unix_ms {
                *wall += delay;
            }
            again
        })
        .collect();
    reports.extend(again);
    reports
}
