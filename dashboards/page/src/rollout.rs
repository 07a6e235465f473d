//! `epwatch rollout`: may a version go to more devices?

use std::fmt::Write as _;

use bytes::Bytes;
use clickhouse::Client;

use crate::read::rollout::{self, ChipsetAnswer, NoRollout, Rollout};
use crate::read::store::StoreReader;
use crate::shell::{ShellAnswer, ShellError, head, no_such, table};
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::time::length;

pub use crate::read::rollout::{Needed, RolloutAnswer, RolloutQuery};

/// Answers `epwatch rollout`: whether the version may go to more devices, and why, for each chipset.
///
/// # Errors
/// Nothing was judged yet, nothing has the name, or the store does not answer.
pub async fn rollout(
    store: Client,
    query: RolloutQuery,
    needed: Needed,
) -> Result<(RolloutAnswer, ShellAnswer), ShellError> {
    let store = StoreReader::new(store, 2);
    let (model, version) = (query.model.clone(), query.version.clone());
    let found = match rollout::read(&store, query, needed).await {
        Ok(found) => found,
        Err(NoRollout::NothingJudged) => return Err(ShellError::NothingJudged),
        Err(NoRollout::Model(known)) => {
            return Err(no_such("model", &model, known.iter().map(|name| &**name)));
        }
        Err(NoRollout::Version(known)) => {
            return Err(no_such(
                "version",
                &version,
                known.iter().map(|name| &**name),
            ));
        }
        Err(NoRollout::Read(error)) => return Err(error.into()),
    };
    if found.answer == RolloutAnswer::Go && found.is_late {
        return Err(ShellError::Late(found.judged_until.to_string()));
    }
    let json = Bytes::from(serde_json::to_vec(&found).unwrap_or_default());
    let answer = ShellAnswer {
        state: json.clone(),
        json,
        text: text(&found),
    };
    Ok((found.answer, answer))
}

pub(crate) fn text(found: &Rollout) -> String {
    let mut text = headline(found);
    text.push_str("\n\n");
    let mut rows = vec![head(&[
        "ANSWER", "CHIPSET", "DEVICES", "COMPARED", "NEEDED", "MEDIAN", "SLOWER", "ON NPU",
    ])];
    for of in &found.chipsets {
        rows.push(vec![
            word(of.answer).to_owned(),
            visible(&of.chipset),
            format!(
                "{} of {}",
                number::count(of.devices),
                number::count(of.devices_on_chipset)
            ),
            number::count(of.compared),
            number::count(of.needed),
            number::ms(of.p50_us),
            number::times(of.latency_ratio),
            number::share(of.npu_share),
        ]);
        rows.extend(of.firmwares.iter().map(|firmware| {
            vec![
                word(firmware.answer).to_owned(),
                format!("  firmware {}", visible(&firmware.firmware)),
                number::count(firmware.devices),
                number::count(firmware.compared),
                number::count(of.needed),
                number::ms(firmware.p50_us),
                number::times(firmware.latency_ratio),
                number::share(firmware.npu_share),
            ]
        }));
    }
    text.push_str(&table(&rows));
    let mut why = found
        .chipsets
        .iter()
        .filter(|of| of.answer != RolloutAnswer::Go)
        .peekable();
    if why.peek().is_some() {
        text.push('\n');
    }
    for of in why {
        let incident = of.incident.as_ref();
        let incident = incident.map(|id| format!("; epwatch incident {}", visible(id)));
        let incident = incident.unwrap_or_default();
        _ = writeln!(text, "{}: {}{incident}", visible(&of.chipset), reason(of));
    }
    _ = write!(
        text,
        "\nNeeded in one window, to see a model that is twice as slow: {} devices, or {} where placements cannot be read.",
        found.needed.with_placements, found.needed.without
    );
    text
}

/// Returns why a chipset has its answer, with what comes next.
pub(crate) fn reason(of: &ChipsetAnswer) -> String {
    let mut text = visible_sentence(&of.why);
    if let Some(seconds) = of.seconds_left {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "days at most, and saturates"
        )]
        let seconds = seconds as i64;
        _ = write!(text, ", in {} at the rate so far", length(seconds));
    }
    text
}

/// Returns the answer in one sentence.
pub(crate) fn headline(found: &Rollout) -> String {
    let of = |answer: RolloutAnswer| -> Vec<String> {
        let its = found.chipsets.iter().filter(|of| of.answer == answer);
        its.map(|of| visible(&of.chipset)).collect()
    };
    let name = format!(
        "{} {}",
        visible(&found.query.model),
        visible(&found.query.version)
    );
    match found.answer {
        RolloutAnswer::Stop => format!(
            "Stop: {name} is at fault on {}",
            of(RolloutAnswer::Stop).join(", ")
        ),
        RolloutAnswer::Go => {
            let chipsets = of(RolloutAnswer::Go).len() as u64;
            format!(
                "Go: {name} is healthy on {}",
                number::of_them(chipsets, "chipset")
            )
        }
        RolloutAnswer::NotYet | RolloutAnswer::Rare => {
            let waits = of(RolloutAnswer::NotYet);
            match waits.is_empty() {
                true => format!("Not yet: {name} has too few devices on each chipset"),
                false => format!("Not yet: {name} is not proven on {}", waits.join(", ")),
            }
        }
    }
}

pub(crate) fn word(answer: RolloutAnswer) -> &'static str {
    match answer {
        RolloutAnswer::Stop => "stop",
        RolloutAnswer::NotYet => "not yet",
        RolloutAnswer::Go => "go",
        RolloutAnswer::Rare => "too rare",
    }
}
