//! Fuzz targets as functions of bytes. A file or an answer of any content must never cause a panic, and a directive
//! without a valid signature must never be accepted. `tests/fuzz` calls these functions, and a test here runs them over
//! the seeds.

use std::time::Duration;

use epwatch_proto::{Placement, v1};
use prost::Message;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::{
    config::CoreConfig,
    directives::{DirectiveKeys, Directives, ReceivedDirectives, StoredDirectives},
    placement::{PlacementInput, log::read_log},
    self_test::GoldenInput,
    simulated_device, spool,
    time::Now,
};

const SERVER: i64 = 1_800_000_000_000;

/// Reads the bytes as an answer with directives, as a directive that is then signed, and as the file of held
/// directives.
pub fn directive(bytes: &[u8]) {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("32 bytes are a seed");
    let key = pair.public_key().as_ref().try_into().expect("32 bytes");
    let device = simulated_device("SM8650");
    let config = CoreConfig::new("app", device.clone()).expect("a config of constants");
    let now = Now::simulated(Duration::from_secs(1), SERVER);
    let directives = || {
        let keys = DirectiveKeys::new(vec![("ops".to_owned(), key)]);
        Directives::new(keys, &config.app, &device)
    };
    let receive = |signed: Vec<v1::SignedDirective>| {
        let mut directives = directives();
        directives.load(Ok(None), now);
        let server_unix_ms = SERVER;
        directives.receive(
            ReceivedDirectives {
                signed,
                server_unix_ms,
            },
            now,
        );
        directives
    };
    if let Ok(response) = v1::UploadResponse::decode(bytes) {
        // The seeds are signed with another key.
        assert!(receive(response.directives).held_ids().is_empty());
    }
    let signed = v1::SignedDirective {
        directive: bytes.to_vec().into(),
        key_id: "ops".to_owned(),
        signature: pair.sign(bytes).as_ref().to_vec().into(),
    };
    let held = receive(vec![signed]);
    assert!(held.held_ids().len() <= 1);
    let stored = held.to_store(now);
    let read = StoredDirectives::parse(&stored.to_bytes());
    let mut again = directives();
    again.load(Ok(read), now);
    assert!(again.held_ids().len() <= held.held_ids().len());
    if let Some(stored) = StoredDirectives::parse(bytes) {
        directives().load(Ok(Some(stored)), now);
    }
}

/// Reads the bytes as a segment of the spool.
pub fn spool_segment(bytes: &[u8]) {
    spool::scan_any(bytes);
}

/// Reads the bytes as an ONNX tensor of a golden input.
pub fn golden_input(bytes: &[u8]) {
    let golden = GoldenInput::new("fuzz").expect("an id of constants");
    if let Ok(golden) = golden.with_tensor_proto(bytes) {
        let n_bytes: usize = golden.inputs().map(|(_, tensor)| tensor.data().len()).sum();
        // In the file, 64-bit elements may take fewer bytes.
        assert!(n_bytes <= 8 * bytes.len());
    }
}

/// Reads the bytes as ONNX Runtime's log or a logcat. A collector must accept the placements in it.
pub fn ort_log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for log in read_log(text.lines()) {
        let placement = log.placement(PlacementInput {
            requested_eps: &["QNNExecutionProvider".to_owned()],
            ..PlacementInput::default()
        });
        let wire = v1::Placement::from(&placement);
        assert_eq!(Placement::try_from(wire).ok().as_ref(), Some(&placement));
    }
}

#[cfg(test)]
#[path = "../../tests/fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::check;

    #[test]
    fn files_and_answers_of_the_seeds_are_read_or_refused() {
        check("directive", 50, super::directive);
        check("spool_segment", 50, super::spool_segment);
        check("golden_input", 50, super::golden_input);
        check("ort_log", 50, super::ort_log);
    }
}
