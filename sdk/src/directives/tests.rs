use std::collections::BTreeMap;

use epwatch_proto::{
    Directive, DirectiveScope, EpShare, Placement, ReasonCode, SelectionPolicy,
    directive::{MAX_DIRECTIVE_BYTES, MAX_LIFE_MS},
};
use proptest::prelude::*;
use ring::signature::{Ed25519KeyPair, KeyPair};

use super::*;
use crate::{
    ModelInfo, config::CoreConfig, core::Core, driver::directive_file::DirectiveFile, folder,
    installation, simulated_device,
};

const SERVER: i64 = 1_800_000_000_000;
const HOUR: i64 = 3_600_000;

fn operator() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

fn public_key(pair: &Ed25519KeyPair) -> [u8; 32] {
    pair.public_key().as_ref().try_into().unwrap()
}

/// A device of app `app` on an SM8650 with the operator's key as `ops`, and the server's time from second 0 on.
fn device() -> Directives {
    let device = simulated_device("SM8650");
    let config = CoreConfig::new("app", device.clone()).unwrap();
    let keys = DirectiveKeys::new(vec![("ops".to_owned(), public_key(&operator()))]);
    let mut directives = Directives::new(keys, &config.app, &device);
    directives.load(Ok(None), at(0));
    directives.receive(answer([]), at(0));
    directives
}

/// The same device before its first answer.
fn core() -> std::sync::Mutex<Core> {
    let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
    let config = config.with_directive_key("ops", public_key(&operator()));
    std::sync::Mutex::new(Core::new(config.unwrap(), crate::random_stream(), at(0)))
}

fn at(seconds: u64) -> Now {
    // The wall clock is always wrong.
    Now::simulated(Duration::from_secs(seconds), 1_000)
}

fn answer(signed: impl IntoIterator<Item = v1::SignedDirective>) -> ReceivedDirectives {
    ReceivedDirectives {
        signed: signed.into_iter().collect(),
        server_unix_ms: SERVER,
    }
}

/// A directive that is in force for an hour from the server's time on.
fn directive(id: &str, action: DirectiveAction) -> Directive {
    Directive {
        id: id.to_owned(),
        scope: DirectiveScope::default(),
        action,
        not_before_unix_ms: SERVER,
        expires_unix_ms: SERVER + HOUR,
    }
}

fn sign(directive: &Directive) -> v1::SignedDirective {
    sign_bytes(&directive.to_bytes())
}

fn sign_bytes(bytes: &[u8]) -> v1::SignedDirective {
    let signature = operator().sign(bytes);
    v1::SignedDirective {
        directive: bytes.to_vec().into(),
        key_id: "ops".to_owned(),
        signature: signature.as_ref().to_vec().into(),
    }
}

fn model(id: &str) -> Model {
    ModelInfo::new(id, "1").unwrap().into()
}

fn is_npu_off(device: &Directives, now: Now) -> bool {
    !device.plan(&model("m"), now).use_npu()
}

#[track_caller]
fn check_refused(signed: v1::SignedDirective, reason: DirectiveRefusal) {
    let mut device = device();
    device.receive(answer([signed.clone()]), at(1));
    assert!(device.held_ids().is_empty());
    assert!(!is_npu_off(&device, at(1)));
    // The collector sends it again because the device does not hold it; the refusal is counted once.
    device.receive(answer([signed]), at(2));
    let mut health = SdkHealth::default();
    device.count_into(&mut health);
    assert_eq!(health.directives_refused, [(reason, 1)].into());
    assert_eq!(health.directives_applied, 0);
}

#[test]
fn a_directive_holds_from_its_beginning_to_its_end_by_the_servers_clock() {
    let mut device = device();
    let mut later = directive("off", DirectiveAction::NpuOff);
    later.not_before_unix_ms += 60_000;
    device.receive(answer([sign(&later)]), at(0));
    assert_eq!(device.held_ids(), ["off"]);
    for (second, is_off) in [
        (0, false),
        (59, false),
        (60, true),
        (3599, true),
        (3600, false),
    ] {
        assert_eq!(is_npu_off(&device, at(second)), is_off, "second {second}");
    }
    device.advance(at(3600));
    assert!(device.held_ids().is_empty());
}

#[test]
fn what_is_wrong_with_a_directive_is_counted_by_reason() {
    use DirectiveRefusal::{BadSignature, Expired, Malformed, OutOfScope, UnknownKey};
    let off = directive("off", DirectiveAction::NpuOff);
    let mut other_key = sign(&off);
    other_key.key_id = "others".to_owned();
    check_refused(other_key, UnknownKey);
    let mut forged = sign(&off);
    forged.signature = sign_bytes(b"other").signature;
    check_refused(forged, BadSignature);
    let mut short = sign(&off);
    short.signature = short.signature.slice(..63);
    check_refused(short, Malformed);
    check_refused(sign_bytes(b"signed, and no directive"), Malformed);
    let large = vec![0; MAX_DIRECTIVE_BYTES + 1];
    check_refused(sign_bytes(&large), Malformed);
    let over = Directive {
        not_before_unix_ms: SERVER - 2 * HOUR,
        expires_unix_ms: SERVER - HOUR,
        ..off.clone()
    };
    check_refused(sign(&over), Expired);
    let too_long = Directive {
        expires_unix_ms: SERVER + MAX_LIFE_MS + 1,
        ..off.clone()
    };
    check_refused(sign(&too_long), Malformed);
    let scope = |scope: DirectiveScope| {
        sign(&Directive {
            scope,
            ..off.clone()
        })
    };
    check_refused(
        scope(DirectiveScope {
            app_id: "another".to_owned(),
            ..Default::default()
        }),
        OutOfScope,
    );
    check_refused(
        scope(DirectiveScope {
            chipset: "SM8750".to_owned(),
            ..Default::default()
        }),
        OutOfScope,
    );
    check_refused(
        scope(DirectiveScope {
            vendor_fingerprint_hash: "0".repeat(32),
            ..Default::default()
        }),
        OutOfScope,
    );
}

#[test]
fn without_a_key_nothing_is_obeyed() {
    let mut device = Directives::default();
    device.receive(
        answer([sign(&directive("off", DirectiveAction::NpuOff))]),
        at(0),
    );
    assert!(!is_npu_off(&device, at(1)));
    assert_eq!(device.refused, [(DirectiveRefusal::UnknownKey, 1)].into());
}

#[test]
fn models_and_versions_are_distinguished() {
    let mut device = device();
    let mut off = directive("off", DirectiveAction::NpuOff);
    off.scope = DirectiveScope {
        app_id: "app".to_owned(),
        model_id: "m".to_owned(),
        model_version: "1".to_owned(),
        chipset: "SM8650".to_owned(),
        vendor_fingerprint_hash: String::new(),
    };
    device.receive(answer([sign(&off)]), at(0));
    assert!(is_npu_off(&device, at(1)));
    assert!(device.plan(&model("other"), at(1)).use_npu());
    let next = ModelInfo::new("m", "2").unwrap().into();
    assert!(device.plan(&next, at(1)).use_npu());
}

#[test]
fn the_one_that_began_last_counts() {
    let mut device = device();
    let old = directive("z", DirectiveAction::Sampling(100));
    let mut new = directive("a", DirectiveAction::Sampling(10));
    new.not_before_unix_ms += 1_000;
    device.receive(answer([sign(&new), sign(&old)]), at(0));
    assert_eq!(device.one_in(&model("m"), at(0)), 100);
    assert_eq!(device.one_in(&model("m"), at(1)), 10);
    assert_eq!(device.applied, 2);
    assert_eq!(device.one_in(&model("m"), at(2)), 10);
    assert_eq!(device.applied, 2);
    // Both are over: all runs are recorded again.
    assert_eq!(device.one_in(&model("m"), at(3601)), 1);
}

#[test]
fn an_interval_that_names_a_model_holds_while_it_is_there() {
    let mut device = device();
    let mut often = directive("often", DirectiveAction::ReportIntervalMs(5_000));
    often.scope.model_id = "m".to_owned();
    device.receive(answer([sign(&often)]), at(0));
    assert_eq!(device.report_interval(&[], at(1)), None);
    assert_eq!(device.report_interval(&[&model("x")], at(1)), None);
    let (x, m) = (model("x"), model("m"));
    let asked = device.report_interval(&[&x, &m], at(1));
    assert_eq!(asked, Some(Duration::from_secs(5)));
}

#[test]
fn a_revoked_directive_is_gone_and_its_replay_is_refused() {
    let mut device = device();
    let off = sign(&directive("off", DirectiveAction::NpuOff));
    let mut revoke = directive("revoke", DirectiveAction::Revoke("off".to_owned()));
    // The revoke ends long before the directive.
    revoke.expires_unix_ms = SERVER + 60_000;
    device.receive(answer([off.clone()]), at(0));
    assert!(is_npu_off(&device, at(1)));
    device.receive(answer([sign(&revoke)]), at(2));
    assert_eq!(device.held_ids(), ["revoke"]);
    assert!(!is_npu_off(&device, at(2)));
    assert_eq!(device.applied, 1);
    for second in [3, 61, 3000, 3600] {
        let server_unix_ms = SERVER + 1000 * i64::try_from(second).unwrap();
        let replayed = ReceivedDirectives {
            signed: vec![off.clone()],
            server_unix_ms,
        };
        device.receive(replayed, at(second));
        device.advance(at(second));
        assert!(!is_npu_off(&device, at(second)), "second {second}");
    }
    assert_eq!(device.refused, [(DirectiveRefusal::Expired, 1)].into());
    // Here the revoke came first.
    let mut other = self::device();
    other.receive(answer([sign(&revoke), off]), at(0));
    assert!(!is_npu_off(&other, at(1)));
}

#[test]
fn a_revoke_for_one_model_leaves_the_others() {
    let mut device = device();
    let mut revoke = directive("revoke", DirectiveAction::Revoke("off".to_owned()));
    revoke.scope.model_id = "m".to_owned();
    let off = directive("off", DirectiveAction::NpuOff);
    device.receive(answer([sign(&off), sign(&revoke)]), at(0));
    assert!(!is_npu_off(&device, at(1)));
    assert!(!device.plan(&model("other"), at(1)).use_npu());
}

#[test]
fn another_directive_under_a_known_id_is_malformed() {
    let mut device = device();
    let off = directive("same", DirectiveAction::NpuOff);
    let sampling = directive("same", DirectiveAction::Sampling(5));
    device.receive(answer([sign(&off), sign(&off), sign(&sampling)]), at(0));
    assert_eq!(device.held_ids(), ["same"]);
    assert_eq!(device.one_in(&model("m"), at(1)), 1);
    assert_eq!(device.refused, [(DirectiveRefusal::Malformed, 1)].into());
}

#[test]
fn what_is_held_is_bounded_and_a_revoke_gets_in() {
    let mut device = device();
    let numbered = (0..held::MAX_HELD).map(|n| {
        let mut held = directive(&format!("d{n}"), DirectiveAction::NpuOff);
        held.expires_unix_ms += i64::try_from(n).unwrap();
        sign(&held)
    });
    device.receive(answer(numbered), at(0));
    assert_eq!(device.held_ids().len(), held::MAX_HELD);
    let more = sign(&directive("more", DirectiveAction::NpuOff));
    device.receive(answer([more]), at(1));
    assert_eq!(device.refused, [(DirectiveRefusal::Malformed, 1)].into());
    let revoke = directive("revoke", DirectiveAction::Revoke("elsewhere".to_owned()));
    device.receive(answer([sign(&revoke)]), at(2));
    let held = device.held_ids();
    assert_eq!(held.len(), held::MAX_HELD);
    assert!(held.contains(&"revoke".to_owned()) && !held.contains(&"d0".to_owned()));
}

#[test]
fn a_plan_names_the_directives_that_a_session_follows() {
    let mut device = device();
    let variant = directive("v", DirectiveAction::PreferredVariant("small".to_owned()));
    device.receive(answer([sign(&variant)]), at(0));
    let plan = device.plan(&model("m"), at(1));
    assert!(plan.use_npu() && plan.is_known());
    assert_eq!(
        (plan.preferred_variant(), plan.directive_id()),
        (Some("small"), Some("v"))
    );
    let asked = ["QNNExecutionProvider".to_owned(), "XNNPACK".to_owned()];
    let ignored = EffectiveRequest::of(&plan, &asked, Some("full"));
    assert_eq!(
        (ignored.directive_id().as_str(), &ignored.requested_eps[..]),
        ("", &asked[..])
    );
    let mark_applied = EffectiveRequest::of(&plan, &asked, Some("small"));
    assert_eq!(mark_applied.directive_id(), "v");

    device.receive(
        answer([sign(&directive("off", DirectiveAction::NpuOff))]),
        at(1),
    );
    let plan = device.plan(&model("m"), at(2));
    let mark_applied = EffectiveRequest::of(&plan, &asked, Some("small"));
    assert_eq!(mark_applied.requested_eps, ["XNNPACK"]);
    assert_eq!(
        mark_applied.directive_ids().collect::<Vec<_>>(),
        ["off", "v"]
    );
    device.mark_applied(mark_applied.directive_ids());
    device.mark_applied(mark_applied.directive_ids());
    assert_eq!(device.applied, 2);
    // A policy looks for the NPU. If the host made the session in spite of the directive, it counts for the EP with nodes.
    let by_policy = [SelectionPolicy::PreferNpu.in_request()];
    let off = EffectiveRequest::of(&plan, &by_policy, None);
    assert!(off.is_npu_off() && off.requested_eps.is_empty());
    let on_npu = EpShare {
        ep: "QNNExecutionProvider".to_owned(),
        n_nodes: 2,
        n_partitions: Some(1),
        op_types: BTreeMap::new(),
        macs_share: None,
    };
    let mut placement = Placement {
        eps: vec![on_npu],
        ..Placement::unavailable(Vec::new(), ReasonCode::NpuOffByDirective)
    };
    let on_npu = off.corrected_by(&by_policy, &mut placement);
    assert_eq!(on_npu.requested_eps, ["QNNExecutionProvider"]);
    assert_eq!(placement.requested_eps, on_npu.requested_eps);
    // A session that asks for the CPU only was not changed.
    assert_eq!(EffectiveRequest::of(&plan, &[], None).directive_id(), "");
}

#[test]
fn a_file_comes_back_as_it_was_and_is_believed_no_further_than_its_signatures() {
    let mut device = device();
    let off = directive("off", DirectiveAction::NpuOff);
    let revoked = directive("revoked", DirectiveAction::NpuOff);
    let mut revoke = directive("revoke", DirectiveAction::Revoke("revoked".to_owned()));
    revoke.expires_unix_ms -= HOUR / 2;
    device.receive(answer([sign(&off), sign(&revoked), sign(&revoke)]), at(0));
    let bytes = device.to_store(at(10)).to_bytes();

    let mut next = self::device();
    next.clock = ServerClock::default();
    next.load(Ok(StoredDirectives::parse(&bytes)), at(0));
    assert_eq!(next.held_ids(), ["off", "revoke"]);
    assert!(is_npu_off(&next, at(1)));
    // The file stores the end of the revoked directive, so the revoke is kept until then.
    next.receive(answer([sign(&revoked)]), at(1900));
    assert_eq!(next.held_ids(), ["off", "revoke"]);

    let mut longer = StoredDirectives::parse(&bytes).unwrap();
    longer.held[0].until_unix_ms += HOUR;
    let mut believed = self::device();
    believed.load(Ok(Some(longer)), at(0));
    assert!(is_npu_off(&believed, at(3000)) && !is_npu_off(&believed, at(3600)));

    // The app's next version trusts another key.
    let mut changed = self::device();
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
    changed.keys = DirectiveKeys::new(vec![("ops".to_owned(), public_key(&other))]);
    changed.load(Ok(StoredDirectives::parse(&bytes)), at(0));
    assert!(changed.held_ids().is_empty());
    assert_eq!(
        changed.refused,
        [(DirectiveRefusal::BadSignature, 2)].into()
    );
}

#[test]
fn a_broken_file_is_no_directives_and_one_refusal() {
    let mut device = device();
    device.receive(
        answer([sign(&directive("off", DirectiveAction::NpuOff))]),
        at(0),
    );
    device.load(Err(UnreadableFile), at(1));
    assert!(device.held_ids().is_empty());
    assert_eq!(device.refused, [(DirectiveRefusal::Malformed, 1)].into());
}

#[test]
fn explanations_name_action_scope_and_end() {
    let mut device = device();
    let mut off = directive("off-7", DirectiveAction::NpuOff);
    off.scope.model_id = "m".to_owned();
    device.receive(answer([sign(&off)]), at(0));
    device.mark_applied(["off-7"].into_iter());
    assert_eq!(
        device.explained(at(60)),
        ["directive off-7: do not use the NPU, model m; ends in 3540s; in effect here"]
    );
}

#[test]
fn public_keys_that_anyone_can_sign_for_are_none() {
    assert!(is_sound(&public_key(&operator())));
    // With a point of small order as the key and as R, and 0 as S, at least every eighth message passes. The list is
    // right if ring agrees.
    let mut forgeable = 0;
    for low in [0_u8, 1, 0xec, 0xed, 0xee] {
        let key = match low {
            0 | 1 => {
                let mut key = [0; 32];
                key[0] = low;
                key
            }
            low => {
                let mut key = [0xff; 32];
                (key[0], key[31]) = (low, 0x7f);
                key
            }
        };
        assert!(!is_sound(&key));
        let mut signature = [0; 64];
        signature[0] = 1;
        let verifier = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
        let is_forged = (0..64_u8).any(|message| verifier.verify(&[message], &signature).is_ok());
        forgeable += usize::from(is_forged);
    }
    assert!(forgeable >= 3, "{forgeable}");
}

/// Another process may have wiped the folder.
#[test]
fn directives_are_kept_only_with_an_installation() {
    let dir = tempfile::tempdir().unwrap();
    let core = core();
    let mut file = DirectiveFile::new(dir.path().to_owned());
    let off = directive("off", DirectiveAction::NpuOff);
    file.receive(&core, answer([sign(&off)]), at(0)).unwrap();
    let path = dir.path().join(folder::DIRECTIVES);
    assert!(!path.exists());
    installation::load_or_create(dir.path()).unwrap();
    file.refresh(&core, at(1)).unwrap();
    assert!(path.exists());
}

/// Acts as if the app had too many open files: an unreadable file is neither lost nor malformed.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_read_now_is_kept_and_obeyed() {
    let dir = tempfile::tempdir().unwrap();
    installation::load_or_create(dir.path()).unwrap();
    let process = || (core(), DirectiveFile::new(dir.path().to_owned()));
    let held = |core: &std::sync::Mutex<Core>| core.lock().unwrap().directives.held_ids();
    let (core, mut file) = process();
    let off = directive("off", DirectiveAction::NpuOff);
    file.receive(&core, answer([sign(&off)]), at(0)).unwrap();

    let path = dir.path().join(folder::DIRECTIVES);
    let away = dir.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    // A link to itself, which nobody can open.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    file.refresh(&core, at(1)).unwrap_err();
    assert!(is_npu_off(&core.lock().unwrap().directives, at(1)));
    let sampling = directive("some", DirectiveAction::Sampling(2));
    let received = answer([sign(&sampling)]);
    file.receive(&core, received, at(2)).unwrap_err();
    assert_eq!(held(&core), ["off", "some"]);
    let (new, mut new_file) = process();
    new_file.read(&new, at(3)).unwrap_err();
    assert!(!new.lock().unwrap().directives.is_loaded());
    assert!(path.is_symlink());

    std::fs::rename(&away, &path).unwrap();
    new_file.refresh(&new, at(4)).unwrap();
    assert_eq!(held(&new), ["off"]);
    // Directives that came meanwhile are stored now.
    file.refresh(&core, at(4)).unwrap();
    new_file.refresh(&new, at(5)).unwrap();
    for core in [core, new] {
        assert_eq!(held(&core), ["off", "some"]);
        assert_eq!(core.lock().unwrap().directives.refused, BTreeMap::new());
    }
}

proptest! {
    /// Unknown bytes are refused, both in a file and in an answer.
    #[test]
    fn any_bytes_are_refused_and_counted(
        directive in prop::collection::vec(any::<u8>(), 0..5000),
        key_id in prop_oneof![Just("ops".to_owned()), any::<String>()],
        signature in prop::collection::vec(any::<u8>(), 0..80),
        is_signed in any::<bool>(),
    ) {
        let signed = match is_signed {
            true => sign_bytes(&directive),
            false => v1::SignedDirective {
                directive: directive.clone().into(),
                key_id,
                signature: signature.into(),
            },
        };
        let mut device = device();
        device.receive(answer([signed]), at(1));
        let n: u64 = device.refused.values().sum();
        prop_assert_eq!(n + device.held_ids().len() as u64, 1);
        if !is_signed {
            prop_assert_eq!(n, 1);
        }
        prop_assert!(StoredDirectives::parse(&directive).is_none());
    }

    #[test]
    fn a_flipped_bit_is_never_accepted(bit in any::<prop::sample::Index>()) {
        let whole = sign(&directive("off", DirectiveAction::NpuOff)).encode_to_vec();
        let mut flipped = whole.clone();
        let at_bit = bit.index(8 * whole.len());
        flipped[at_bit / 8] ^= 1 << (at_bit % 8);
        // Bytes that are not a message do not reach the device's check.
        if let Ok(signed) = v1::SignedDirective::decode(&flipped[..]) {
            let mut device = device();
            device.receive(answer([signed]), at(1));
            prop_assert!(device.held_ids().is_empty());
            prop_assert!(!is_npu_off(&device, at(2)));
        }
    }

    #[test]
    fn a_flipped_bit_in_the_file_is_found(bit in any::<prop::sample::Index>()) {
        let mut device = device();
        device.receive(answer([sign(&directive("off", DirectiveAction::NpuOff))]), at(0));
        let mut bytes = device.to_store(at(1)).to_bytes();
        let at_bit = bit.index(8 * bytes.len());
        bytes[at_bit / 8] ^= 1 << (at_bit % 8);
        prop_assert_eq!(StoredDirectives::parse(&bytes), None);
    }

    /// Directives arrive in any order and number. While a revoke is in force its target has no effect, and the number
    /// of held directives is bounded.
    #[test]
    fn revoked_and_ended_directives_never_come_back(
        order in prop::collection::vec((0_usize..12, 1_u64..400), 1..60),
        clock_back in any::<bool>(),
    ) {
        let off = |n: usize| {
            let mut off = directive(&format!("off{n}"), DirectiveAction::NpuOff);
            off.expires_unix_ms = SERVER + 600_000 * (1 + i64::try_from(n).unwrap());
            off
        };
        let revoke = |n: usize| {
            let id = format!("off{n}");
            let mut revoke = directive(&format!("no-{id}"), DirectiveAction::Revoke(id));
            // As an operator would set it: the revoke does not end before the revoked directive.
            revoke.expires_unix_ms = off(n).expires_unix_ms;
            revoke
        };
        let mut device = device();
        let mut second = 0;
        let mut revoked = [false; 6];
        for (n, step) in order {
            second += step;
            let signed = if n < 6 { sign(&off(n)) } else { sign(&revoke(n - 6)) };
            if n >= 6 {
                revoked[n - 6] = true;
            }
            let wall = if clock_back { 0 } else { i64::MAX / 4 };
            let now = Now { wall_unix_ms: wall, ..at(second) };
            let server = SERVER + 1000 * i64::try_from(second).unwrap();
            device.receive(ReceivedDirectives { signed: vec![signed], server_unix_ms: server }, now);
            let plan = device.plan(&model("m"), now);
            if let Some(id) = plan.directive_id() {
                let n: usize = id.trim_start_matches("off").parse().unwrap();
                prop_assert!(!revoked[n], "{id} was revoked");
                prop_assert!(server < off(n).expires_unix_ms, "{id} is over");
            }
            prop_assert!(device.held_ids().len() <= held::MAX_HELD);
        }
    }
}
