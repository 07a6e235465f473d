//! Rows of reports as bytes, for a recording and for the held window. Windows are built from them here.
//!
//! Installations and placements have numbers, because both occur in many rows.

mod group;
mod histogram;
pub(in crate::read) mod rows;

use epwatch_model::Installation;

use crate::judge::hash::HashSet;

use super::assemble::{ModelId, SeriesRow, WindowBuilders};
pub(in crate::read) use group::ReportedPlacement;
pub(in crate::read) use rows::{RecordedSession, Series, SeriesFields};

/// Sessions that were added: device, group, whether they are late or unproven, and the time of their creation. They are
/// remembered because a device reports a session again in each interval.
pub(in crate::read) type KnownSessions = HashSet<(u32, u32, bool, bool, i64)>;

/// The rows of one model in one bucket, with the devices and groups that their numbers stand for.
pub(in crate::read) struct PackedRows<'a> {
    pub(in crate::read) bucket_s: i64,
    pub(in crate::read) devices: &'a [Installation],
    pub(in crate::read) groups: &'a [ReportedPlacement],
    /// [`RecordedSession`], one after the other.
    pub(in crate::read) seen: &'a [u8],
    /// [`Series`], one after the other.
    pub(in crate::read) series: &'a [u8],
}

impl PackedRows<'_> {
    /// Adds sessions that are not in `known`, and clean series of the wanted devices, to a model's windows.
    pub(in crate::read) fn add(
        &self,
        model: ModelId,
        wants: impl Fn(&Installation) -> bool,
        known: &mut KnownSessions,
        builders: &mut WindowBuilders<'_>,
    ) {
        let mut rest = self.seen;
        while let Some(seen) = RecordedSession::take(&mut rest) {
            let group = &self.groups[seen.group as usize];
            let device = &self.devices[seen.device as usize];
            let created_s = self.bucket_s.saturating_add(seen.created_after_s.into());
            let (late, unproven) = (seen.is_late, seen.is_unproven);
            let id = (seen.device, seen.group, late, unproven, created_s);
            if group.takes_part() && wants(device) && known.insert(id) {
                let row = group.session_row(*device, created_s, &seen);
                builders.add(model, |builder, texts| builder.add_session(row, texts));
            }
        }
        let mut rest = self.series;
        while let Some(series) = Series::take(&mut rest) {
            let device = &self.devices[series.device as usize];
            if !wants(device) {
                continue;
            }
            let (fields, buckets) = series.unpacked();
            let row = SeriesRow {
                installation: *device,
                ran: self.groups[series.group as usize].ran,
                shape_key: series.shape,
                reports_heat: fields.reports_heat,
                head: fields.head(series.n),
                earlier: fields.earlier,
            };
            builders.add(model, |builder, _| builder.add_series(&row, buckets));
        }
    }
}
