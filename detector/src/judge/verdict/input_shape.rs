//! Finds the input shape of the slow runs, if the same devices are as fast as before with other shapes.

use std::collections::BTreeMap;

use epwatch_model::{Installation, Reason};
use epwatch_proto::stratum::STATIC_SHAPE;

use crate::judge::hash::HashSet;
use crate::judge::signals::{MIN_HITS, SignalEvidence, intermittent_runs};
use crate::judge::window::CohortWindow;

use super::finding::Finding;

/// Minimum share of the devices hit that are slow with the shape.
const MOST_HIT: f64 = 0.8;

/// Minimum share of the devices hit that have enough runs with another shape to compare.
const COMPARED: f64 = 0.5;

/// Largest share of these devices that may be slow with another shape. Some devices have slow runs at any time.
const MOST_OTHERS: f64 = 0.25;

/// For one shape, the devices that are slow with it and the devices that are as fast as before.
#[derive(Debug, Default)]
struct WithShape {
    slow: HashSet<Installation>,
    fast: HashSet<Installation>,
}

/// Adds the reason that names the shape, if one stands out.
pub(super) fn name(found: &mut Finding, window: &CohortWindow, evidence: &SignalEvidence) {
    let Some(reason) = of_those_hit(window, evidence, found) else {
        return;
    };
    if let Reason::InputShape {
        run_share: of_all, ..
    } = reason
    {
        for known in &mut found.reasons {
            // The share was counted over the runs with the shape only.
            if let Reason::Intermittent {
                slow_share: Some(share),
                ..
            } = known
            {
                *share *= of_all;
            }
        }
    }
    found.reasons.push(reason);
}

/// Returns the reason that names the shape; `None` if the finding is not about latency, or no shape stands out.
fn of_those_hit(
    window: &CohortWindow,
    evidence: &SignalEvidence,
    found: &Finding,
) -> Option<Reason> {
    let (hit, shapes) = shapes_of_hit(window, evidence, found)?;
    let n_hit = hit.len() as f64;
    let candidates = shapes.iter().filter_map(|(shape, of_shape)| {
        if !intermittent_runs::is_known(shape) || *shape == STATIC_SHAPE {
            return None;
        }
        let (mut elsewhere, mut slow_elsewhere) = (HashSet::default(), HashSet::default());
        for (_, other) in shapes.iter().filter(|(other, _)| *other != shape) {
            elsewhere.extend(other.slow.iter().chain(&other.fast).copied());
            slow_elsewhere.extend(other.slow.iter().copied());
        }
        let hits = of_shape.slow.len() as u64;
        let carries = hits >= MIN_HITS
            && hits as f64 >= MOST_HIT * n_hit
            && elsewhere.len() as f64 >= COMPARED * n_hit
            && slow_elsewhere.len() as f64 <= MOST_OTHERS * elsewhere.len() as f64;
        carries.then(|| Reason::InputShape {
            shape: (*shape).to_owned(),
            hits,
            devices: hit.len() as u64,
            others: slow_elsewhere.len() as u64,
            run_share: run_share(window, hit, shape),
        })
    });
    candidates.max_by_key(|reason| match reason {
        Reason::InputShape { hits, .. } => *hits,
        _ => 0,
    })
}

type Shapes<'a> = BTreeMap<&'a str, WithShape>;

/// Returns the devices that the finding counts as hit, and how fast they are with each shape.
fn shapes_of_hit<'a>(
    window: &'a CohortWindow,
    evidence: &'a SignalEvidence,
    found: &Finding,
) -> Option<(&'a HashSet<Installation>, Shapes<'a>)> {
    let is_at_times = |reason: &Reason| matches!(reason, Reason::Intermittent { .. });
    let is_slower = |reason: &Reason| matches!(reason, Reason::Shift { .. });
    let mut shapes = Shapes::new();
    let mut add = |device: Installation, shape: &'a str, is_slow: bool| {
        let of_shape = shapes.entry(shape).or_default();
        match is_slow {
            true => of_shape.slow.insert(device),
            false => of_shape.fast.insert(device),
        };
    };
    let hit = if found.reasons.iter().any(is_at_times) {
        let found = evidence.firing_intermittent()?;
        for ((device, _, shape), runs) in intermittent_runs::runs_by_shape(&window.votes) {
            if found.hit_devices.contains(&device) {
                add(
                    device,
                    shape,
                    intermittent_runs::is_hit(&found.signal, &runs),
                );
            }
        }
        &found.hit_devices
    } else if found.reasons.iter().any(is_slower) {
        let shift = evidence.firing_shift()?;
        for vote in &window.votes {
            let latency = vote.latency.as_ref();
            let ratio = latency.and_then(|latency| latency.p10_ratio());
            let Some(ratio) = ratio.filter(|_| shift.hit_devices.contains(&vote.installation))
            else {
                continue;
            };
            add(
                vote.installation,
                &vote.shape_key,
                ratio >= shift.signal.threshold,
            );
        }
        &shift.hit_devices
    } else {
        return None;
    };
    Some((hit, shapes))
}

/// Returns the share of the clean runs of these devices that have the shape.
fn run_share(window: &CohortWindow, devices: &HashSet<Installation>, shape: &str) -> f64 {
    let votes = window.votes.iter();
    let of_devices = votes.filter(|vote| devices.contains(&vote.installation));
    let (mut with_shape, mut all) = (0_u64, 0_u64);
    for vote in of_devices {
        let n = vote
            .latency
            .as_ref()
            .map_or(0, |latency| latency.moments.n());
        all += n;
        if &*vote.shape_key == shape {
            with_shape += n;
        }
    }
    with_shape as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use crate::judge::window::CohortWindow;
    use crate::testing::{Fleet, judged, reference};
    use epwatch_model::Severity;

    /// A window in which a third of each device's runs have a large shape. Runs are slower by the factors `small` and
    /// `large`.
    fn with_two_shapes(small: f64, large: f64) -> CohortWindow {
        let of = |shape: &str, runs, slow_factor| {
            let fleet = Fleet {
                runs,
                slow_factor,
                hit_share: 0.6,
                ..Fleet::default()
            };
            let mut window = fleet.window();
            for vote in &mut window.votes {
                vote.shape_key = shape.into();
            }
            window
        };
        let mut window = of("x:1x3x224x224", 50, small);
        window.votes.extend(of("x:1x3x640x640", 25, large).votes);
        window
    }

    #[track_caller]
    fn check(window: &CohortWindow, expected: Option<&str>) {
        let verdict = judged(window, None, &reference());
        assert_eq!(verdict.severity, Severity::Page);
        let told: Vec<String> = verdict.reasons.iter().map(ToString::to_string).collect();
        let found = told.iter().find(|reason| reason.contains("input shape"));
        assert_eq!(found.map(String::as_str), expected, "{told:#?}");
        assert_eq!(verdict.next_step.contains("640x640"), expected.is_some());
        let is_all = |reason: &String| reason.contains("100 % of the runs");
        assert!(!told.iter().any(is_all), "{told:#?}");
    }

    #[test]
    fn the_shape_that_is_slow_is_named_with_its_share_of_the_runs() {
        let says = "it comes with the input shape x:1x3x640x640: 36 of the 36 devices hit are slow with it, and 0 with \
                    another; 33 % of their runs have it";
        check(&with_two_shapes(1.0, 3.0), Some(says));
    }

    #[test]
    fn a_slow_down_with_all_shapes_names_none() {
        check(&with_two_shapes(3.0, 3.0), None);
    }
}
