//! Fleets whose devices run a golden input: a quantisation that damages outputs, an NPU or a firmware that computes
//! wrongly, and rounding modes that differ. A small network in 8 bits gives the distances.

mod network;

use epwatch_detector::replay::Line;
use epwatch_fleet::chance::{Chance, whole};
use epwatch_model::summary::VerdictSummary;
use epwatch_model::{Severity, VerdictClass};
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::{ROUNDING_COSINE, Report, SelfTest};

use crate::evaluation::START_MS;
use crate::labelled::{Benign, Family, FamilyReport, FamilySpec, PlacementView, Truth};

pub use network::Rounding;
use network::{Defect, DefectKind, Network, cosine};

/// The version that is tested, the one before, and the model.
const NEW: &str = "2.0.0";
const OLD: &str = "1.0.0";
const MODEL: &str = "segmenter";

/// The firmware with the defect.
const FIRMWARE: &str = "f9";

/// Minimum and maximum share of a chipset's devices that have the firmware.
const WITH_FIRMWARE: (f64, f64) = (0.3, 0.7);

/// From this cosine with the unquantised network on, a network counts as working in 8 bits.
const WORKS: f64 = 0.995;

/// Cosine below which a loss or a defect is worth a finding.
const WORTH: f64 = 0.97;

/// Largest 1 - cosine of a quantisation that an owner would ship.
const LARGEST_LOSS: f64 = 0.15;

/// The truth about a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoldenFleet {
    /// One layer has too wide a range, on all chipsets.
    Quantisation,
    /// The NPU of one chipset computes a layer wrongly.
    OneChipset,
    /// One firmware of one chipset computes a layer wrongly.
    OneFirmware,
    /// Chipsets and firmwares round differently, and nothing is wrong.
    RoundingOnly,
}

impl GoldenFleet {
    /// All of them.
    pub const ALL: [GoldenFleet; 4] = [
        GoldenFleet::Quantisation,
        GoldenFleet::OneChipset,
        GoldenFleet::OneFirmware,
        GoldenFleet::RoundingOnly,
    ];

    /// Returns the events of the fleet, and the finding that is expected.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            GoldenFleet::Quantisation => {
                "one layer has too wide a range, on all chipsets: the quantisation"
            }
            GoldenFleet::OneChipset => "one chipset computes a layer wrongly: its NPU",
            GoldenFleet::OneFirmware => {
                "one firmware of one chipset does: its NPU, with the firmware's name"
            }
            GoldenFleet::RoundingOnly => {
                "chipsets and firmwares round differently (nearest even, half up, floor, a last bit): no finding"
            }
        }
    }

    /// Returns the reports of a fleet. It has two to four chipsets with 12 to 40 devices each, two days before 2.0.0
    /// and two with it. In half of the fleets devices also test 1.0.0.
    #[must_use]
    pub fn reports(self, seed: u64) -> Vec<FamilyReport> {
        let mut chance = Chance::split(seed, "golden", 0);
        let spec = FamilySpec {
            view: PlacementView::Full,
            chipsets: 2 + whole(chance.unit() * 3.0) as usize,
            devices: 12 + whole(chance.unit() * 29.0) as usize,
            windows: (2, 2),
            rollout: vec![1.0],
            rolls_out_twice: false,
            runs: 15.0,
            shape_known: true,
            peers: 0.0,
            presence: 1.0,
            ..FamilySpec::drawn(seed, Truth::Benign(Benign::Plain))
        };
        let family = Family::new(spec, START_MS);
        let windows = 0..family.n_windows();
        let mut reports: Vec<FamilyReport> =
            windows.flat_map(|window| family.window(window)).collect();
        let lab = Lab::drawn(self, &mut chance);
        for report in &mut reports {
            lab.test(seed, &mut report.report);
        }
        reports
    }

    /// Compares the lines of a replay of the fleet's reports with the truth.
    ///
    /// # Errors
    /// The first wrong statement of the replay. A text that begins with [`FALSE_FINDING`] is about a place without a
    /// fault.
    pub fn wrong_in(self, lines: &[Line]) -> Result<(), String> {
        let verdicts = lines.iter().filter_map(|line| match line {
            Line::Verdict(verdict) => Some(&**verdict),
            _ => None,
        });
        let verdicts: Vec<&VerdictSummary> = verdicts.collect();
        let found = verdicts.iter().filter(|one| one.verdict.is_of_outputs());
        let at_fault = first_chipset(&verdicts);
        for one in found {
            let hash = vendor_fingerprint_hash(FIRMWARE);
            let is_there = one.version == NEW
                && match self {
                    GoldenFleet::Quantisation => true,
                    GoldenFleet::OneChipset => one.chipset == at_fault,
                    GoldenFleet::OneFirmware => {
                        one.chipset == at_fault && ["", &*hash].contains(&&*one.firmware)
                    }
                    GoldenFleet::RoundingOnly => false,
                };
            if !is_there {
                let place = (&one.version, &one.chipset, &one.firmware, one.verdict);
                return Err(format!("{FALSE_FINDING}: {place:?}: {:?}", one.reasons));
            }
        }
        let (class, says) = match self {
            GoldenFleet::Quantisation => {
                (VerdictClass::QuantisationLoss, "it is your quantisation")
            }
            GoldenFleet::OneChipset => (VerdictClass::WrongOutputs, "it is the NPU here"),
            GoldenFleet::OneFirmware => (VerdictClass::WrongOutputs, "it comes with a firmware"),
            GoldenFleet::RoundingOnly => return Ok(()),
        };
        let last = verdicts.iter().map(|one| &one.window_end).max();
        let expected = verdicts.iter().filter(|one| {
            Some(&one.window_end) == last
                && one.version == NEW
                && one.firmware.is_empty()
                && (self == GoldenFleet::Quantisation || one.chipset == at_fault)
        });
        for one in expected {
            let is_said = one.reasons.iter().any(|reason| reason.contains(says));
            if one.verdict != class || one.severity < Severity::Ticket || !is_said {
                let said = (one.verdict, one.severity, &one.reasons);
                return Err(format!("{}: {said:?}", one.chipset));
            }
        }
        Ok(())
    }
}

/// Start of the text about a finding without a fault.
pub const FALSE_FINDING: &str = "a false finding";

/// Returns the chipset of the fault. Chipsets are numbered in the order of their code table, so it is the chipset that
/// all fleets have.
fn first_chipset(verdicts: &[&VerdictSummary]) -> String {
    let is_it = |one: &&&VerdictSummary| one.chipset == crate::stories::CHIPSET;
    let found = verdicts.iter().find(is_it);
    found.map_or(String::new(), |one| one.chipset.clone())
}

/// The model and the phones' arithmetic.
#[derive(Debug)]
struct Lab {
    truth: GoldenFleet,
    network: Network,
    defect: Option<Defect>,
    /// Whether the CPU session has the file without quantisation.
    float_on_cpu: bool,
    has_inner_outputs: bool,
    tests_old: bool,
    /// The owner's tolerance: three times the distance that rounding made on the bench.
    tolerance: Option<f64>,
    with_firmware: f64,
    roundings: Vec<Rounding>,
}

impl Lab {
    fn drawn(truth: GoldenFleet, chance: &mut Chance) -> Self {
        let (network, defect) = loop {
            let mut network = working(chance);
            let layers = network.depth();
            let layer = (whole(chance.unit() * layers as f64) as usize).min(layers - 1);
            let defect = match truth {
                GoldenFleet::RoundingOnly => Some(None),
                GoldenFleet::Quantisation => loses(&mut network, layer).then_some(None),
                GoldenFleet::OneChipset | GoldenFleet::OneFirmware => {
                    defect_of(&network, layer, chance).map(Some)
                }
            };
            if let Some(defect) = defect {
                break (network, defect);
            }
        };
        let on_bench = Rounding::ALL.map(|rounding| {
            let npu = network.in_8_bits(rounding, None, chance);
            distance(&plain(&network), &npu).max_abs
        });
        let on_bench = on_bench.into_iter().fold(0.0, f64::max);
        let float_on_cpu = truth == GoldenFleet::Quantisation || chance.happens(0.5);
        let tolerance = 3.0 * on_bench;
        let of_defect = defect.map(|defect| {
            let npu = network.in_8_bits(Rounding::NearestEven, Some(defect), chance);
            distance(&plain(&network), &npu).max_abs
        });
        let has_tolerance = !float_on_cpu
            && chance.happens(2.0 / 3.0)
            && of_defect.is_none_or(|max_abs| max_abs > 1.5 * tolerance);
        Lab {
            truth,
            network,
            defect,
            float_on_cpu,
            has_inner_outputs: chance.happens(0.5),
            tests_old: chance.happens(0.5),
            tolerance: has_tolerance.then_some(tolerance),
            with_firmware: chance.between(WITH_FIRMWARE),
            roundings: (0..16)
                .map(|_| Rounding::ALL[(whole(chance.unit() * 4.0) % 4) as usize])
                .collect(),
        }
    }

    /// Adds the self-tests of a device to its report of a day.
    fn test(&self, seed: u64, report: &mut Report) {
        let number = report.key.stream.0;
        let mut of_device = Chance::split(seed, "device", number);
        let has_firmware = of_device.happens(self.with_firmware);
        if has_firmware {
            report.device.vendor_fingerprint_hash = vendor_fingerprint_hash(FIRMWARE);
        }
        let is_there = report.device.chipset_raw == crate::stories::CHIPSET;
        let chipset = report.device.chipset_raw.bytes();
        let chipset = chipset.fold(usize::from(has_firmware), |sum, byte| {
            sum + usize::from(byte)
        });
        let rounding = self.roundings[chipset % self.roundings.len()];
        let sessions = report
            .sessions
            .iter()
            .filter(|session| session.model.id == MODEL);
        let sessions = sessions.filter(|session| {
            session.model.version == NEW || (self.tests_old && session.model.version == OLD)
        });
        let Some((uid, version)) = sessions
            .map(|session| (session.uid, session.model.version.clone()))
            .next()
        else {
            return;
        };
        let is_new = version == NEW;
        let defect = self.defect.filter(|_| {
            is_new && is_there && (self.truth == GoldenFleet::OneChipset || has_firmware)
        });
        let npu = self.network.in_8_bits(rounding, defect, &mut of_device);
        let cpu = match self.float_on_cpu {
            true => self.network.float(),
            false => plain(&self.network),
        };
        // The version before kept all layers in 16 bits.
        let npu = if is_new || self.truth != GoldenFleet::Quantisation {
            npu
        } else {
            cpu.clone()
        };
        let of = distance(&cpu, &npu);
        report.self_tests = vec![SelfTest {
            session_uid: uid,
            input_id: "noise-1".into(),
            tolerance: self.tolerance,
            npu_output_hash: Some(hash(&npu)),
            cpu_output_hash: Some(hash(&cpu)),
            max_abs: Some(of.max_abs),
            cosine: Some(of.cosine),
            top1_equal: Some(of.top1_equal),
            error_code: 0,
            first_off_output: match self.has_inner_outputs {
                true => first_off(&cpu, &npu),
                false => String::new(),
            },
        }];
    }
}

/// Widens the range of a layer until the loss is worth a finding. Returns whether a shipped file may have this loss.
/// More than [`LARGEST_LOSS`] would fail on the owner's bench.
fn loses(network: &mut Network, layer: usize) -> bool {
    for _ in 0..60 {
        network.widen(layer, 1.15);
        let cosine = distance(&network.float(), &plain(network)).cosine;
        if cosine <= WORTH {
            return cosine >= 1.0 - LARGEST_LOSS;
        }
    }
    false
}

/// Returns a defect in a layer that is just bad enough to be worth a finding, if there is one.
fn defect_of(network: &Network, layer: usize, chance: &mut Chance) -> Option<Defect> {
    let kind = whole(chance.unit() * 3.0);
    let defects = (1..200_u32).map(|step| {
        let kind = match kind {
            0 => DefectKind::Saturates(0.9_f64.powf(step.into())),
            1 => DefectKind::DropsChannels(17_usize.saturating_sub(step as usize).max(1)),
            _ => DefectKind::Offset(2.0 * f64::from(step)),
        };
        Defect { layer, kind }
    });
    let mut defects = defects;
    defects.find(|defect| {
        let npu = network.in_8_bits(Rounding::NearestEven, Some(*defect), chance);
        distance(&plain(network), &npu).cosine <= WORTH
    })
}

/// Returns, for each network that works in 8 bits, the least cosine between any rounding mode and ONNX's. The cosines
/// are in rising order.
#[must_use]
pub fn least_cosines_of_rounding(first_seed: u64, networks: u64) -> Vec<f64> {
    let of_seed = |seed| {
        let mut chance = Chance::split(seed, "rounding", 0);
        let network = working(&mut chance);
        let cpu = plain(&network);
        let cosines = Rounding::ALL
            .map(|rounding| distance(&cpu, &network.in_8_bits(rounding, None, &mut chance)).cosine);
        cosines.into_iter().fold(1.0, f64::min)
    };
    let seeds = first_seed..first_seed + networks;
    let mut all: Vec<f64> = seeds.map(of_seed).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Draws a network that works in 8 bits.
fn working(chance: &mut Chance) -> Network {
    loop {
        let network = Network::drawn(chance);
        if distance(&network.float(), &plain(&network)).cosine >= WORKS {
            return network;
        }
    }
}

/// Returns the outputs of the network in 8 bits on a CPU.
fn plain(network: &Network) -> Vec<Vec<f64>> {
    network.in_8_bits(
        Rounding::NearestEven,
        None,
        &mut Chance::split(0, "plain", 0),
    )
}

/// The distance of two outputs.
#[derive(Debug, Clone, Copy)]
struct Distance {
    cosine: f64,
    max_abs: f64,
    top1_equal: bool,
}

fn distance(cpu: &[Vec<f64>], npu: &[Vec<f64>]) -> Distance {
    let (Some(cpu), Some(npu)) = (cpu.last(), npu.last()) else {
        return Distance {
            cosine: 1.0,
            max_abs: 0.0,
            top1_equal: true,
        };
    };
    let differences = cpu.iter().zip(npu).map(|(a, b)| (a - b).abs());
    let top = |of: &[f64]| {
        of.iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1))
            .map(|(at, _)| at)
    };
    Distance {
        cosine: cosine(cpu, npu),
        max_abs: differences.fold(0.0, f64::max),
        top1_equal: top(cpu) == top(npu),
    }
}

fn first_off(cpu: &[Vec<f64>], npu: &[Vec<f64>]) -> String {
    let mut layers = cpu.iter().zip(npu);
    let found = layers.position(|(cpu, npu)| cosine(cpu, npu) < ROUNDING_COSINE);
    found.map_or(String::new(), |at| format!("layer_{at}"))
}

fn hash(outputs: &[Vec<f64>]) -> [u8; 16] {
    let values = outputs.last().into_iter().flatten();
    let mix = |seed: u64| {
        let mixed = values.clone().fold(seed, |hash, value| {
            (hash ^ value.to_bits())
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        });
        mixed.to_le_bytes()
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mix(1));
    bytes[8..].copy_from_slice(&mix(2));
    bytes
}
