//! `epwatch rollout`: may a version go to more devices?

use bytes::Bytes;
use clickhouse::Client;
use jiff::Timestamp;

use crate::read::rollout::{self, NoRollout};
use crate::read::store::StoreReader;
use crate::terminal::{TerminalAnswer, TerminalError, no_such, rollout_text};

pub use crate::read::rollout::{Needed, RolloutAnswer, RolloutQuery};

/// Answers `epwatch rollout`: whether the version may go to more devices, and why, for each chipset.
///
/// # Errors
/// Nothing was judged yet, the name is unknown, or the store does not answer.
pub async fn rollout(
    store: Client,
    query: RolloutQuery,
    needed: Needed,
) -> Result<(RolloutAnswer, TerminalAnswer), TerminalError> {
    let store = StoreReader::for_command(store);
    let (model, version) = (query.model.clone(), query.version.clone());
    let found = match rollout::read(&store, query, needed, Timestamp::now()).await {
        Ok(found) => found,
        Err(NoRollout::NothingJudged) => return Err(TerminalError::NothingJudged),
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
        return Err(TerminalError::Late(found.judged_until.to_string()));
    }
    let json = Bytes::from(serde_json::to_vec(&found).unwrap_or_default());
    let answer = TerminalAnswer {
        state: json.clone(),
        json,
        text: rollout_text(&found),
    };
    Ok((found.answer, answer))
}
