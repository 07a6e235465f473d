//! The WAL against a model: any order of appends, failures, checkpoints and power losses.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Append {
        sizes: Vec<usize>,
    },
    FailSoon {
        n_operations: u32,
        partial_bytes: usize,
    },
    Checkpoint {
        share: u8,
    },
    PrepareSpare,
    LosePower {
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(1..150_usize, 1..6).prop_map(|sizes| Step::Append { sizes }),
        3 => (0..5_u32, 0..300_usize).prop_map(|(n_operations, partial_bytes)| Step::FailSoon {
            n_operations,
            partial_bytes
        }),
        2 => (0..=4_u8).prop_map(|share| Step::Checkpoint { share }),
        1 => Just(Step::PrepareSpare),
        3 => any::<u64>().prop_map(|seed| Step::LosePower { seed }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Records that must be in the WAL, and records that may be.
#[derive(Debug, Default)]
struct Model {
    /// Records in order; true if the record was acknowledged.
    appended: Vec<(Vec<u8>, bool)>,
    checkpoint: WalOffset,
    /// Records below the checkpoint.
    n_done: usize,
}

impl Model {
    fn check(&self, log: &Log) {
        let found = payloads(log, self.checkpoint);
        let mut expected = self.appended[self.n_done..].iter();
        for payload in &found {
            loop {
                let (next, is_acknowledged) = expected
                    .next()
                    .expect("only what was appended, and once, in order");
                if next == payload {
                    break;
                }
                assert!(!is_acknowledged, "an acknowledged record is missing");
            }
        }
        assert!(
            expected.all(|(_, is_acknowledged)| !is_acknowledged),
            "the end is missing"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Acknowledged records come back in order after any failure; other records come back whole or not at all.
    #[test]
    fn log_agrees_with_its_model(steps in steps()) {
        let storage = FaultyStorage::default();
        // The id must be stored from the start.
        let id = load_or_make_id(&storage).unwrap();
        checkpoint::save(&storage, &id.0, &Checkpoint::default()).unwrap();
        let (mut log, _, _) = open_log(&storage);
        let mut model = Model::default();
        let mut n_appended = 0_u32;
        for step in steps {
            match step {
                Step::Append { sizes } => {
                    let batch: Vec<Vec<u8>> = sizes
                        .iter()
                        .map(|size| {
                            n_appended += 1;
                            let mut payload = n_appended.to_le_bytes().to_vec();
                            payload.resize(4 + size, u8::try_from(n_appended % 251).unwrap());
                            payload
                        })
                        .collect();
                    let outcome = log.append_group(&mut group(&batch), u64::from(n_appended));
                    model.appended.extend(batch.into_iter().map(|b| (b, outcome.is_ok())));
                }
                Step::FailSoon { n_operations, partial_bytes } => {
                    storage.fail_after(n_operations, partial_bytes);
                }
                Step::Checkpoint { share } => {
                    let (records, _) = read_all(&log, model.checkpoint);
                    let n = records.len() * usize::from(share) / 4;
                    let offset = n.checked_sub(1).map_or(model.checkpoint, |last| WalOffset(records[last].end()));
                    let new = Checkpoint { offset, time_us: 0, batch_end: None };
                    if checkpoint::save(&storage, &id.0, &new).is_ok() {
                        // Records that were never acknowledged may lie between them.
                        if let Some(last) = n.checked_sub(1).map(|last| &records[last].payload) {
                            let undone = &model.appended[model.n_done..];
                            let at = undone.iter().position(|(payload, _)| payload[..] == last[..]);
                            model.n_done += at.expect("it was appended") + 1;
                        }
                        model.checkpoint = offset;
                        let _ = log.remove_below(offset.0);
                    } else {
                        let found = checkpoint::load(&storage, &id.0).unwrap().known().unwrap_or_default();
                        prop_assert!(found.offset == model.checkpoint || found == new);
                        // The writer would also try again.
                        storage.disk().until_failure = None;
                        checkpoint::save(&storage, &id.0, &Checkpoint { offset: model.checkpoint, ..new }).unwrap();
                    }
                }
                Step::PrepareSpare => {
                    let _ = log.prepare_spare();
                }
                Step::LosePower { seed } => {
                    let mut state = seed | 1;
                    storage.lose_power(|| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state & 8 != 0
                    });
                    let end = log.end();
                    let (reopened, _, checkpoint) = open_log(&storage);
                    prop_assert_eq!(checkpoint.offset, model.checkpoint);
                    prop_assert!(reopened.end() >= end, "no offset is given out twice");
                    log = reopened;
                    // A torn record stays torn: the model no longer expects it.
                    let found = payloads(&log, model.checkpoint);
                    let n_done = model.n_done;
                    let mut at = 0;
                    model.appended.retain(|(payload, is_acknowledged)| {
                        at += 1;
                        at <= n_done || *is_acknowledged || found.contains(payload)
                    });
                }
            }
            model.check(&log);
        }
    }
}
