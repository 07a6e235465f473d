//! The next steps for the person on call and others, by class and reasons of a verdict. Each step is one line, with
//! code between backticks. Names from devices contain neither line breaks nor backticks here.

use std::fmt::Write as _;

use epwatch_model::numbers::{counted, latency};
use epwatch_model::{CohortKey, Origin, Reason, VerdictClass};
use epwatch_proto::accelerator::{of_cohort, split_cohort};
use epwatch_proto::{ReasonCode, SelectionPolicy, visible};

use crate::judge::cpu_alone::CpuAlone;
use crate::judge::signals::PlacementChange;

/// Returns the next step if all chipsets show the same effect.
pub(crate) fn on_all_chipsets(reasons: &[Reason]) -> String {
    let what = new_runtime(reasons).unwrap_or_else(|| {
        "Compare MACs and input sizes of the model with the previous version, and look at what else the app runs"
            .to_owned()
    });
    format!("{what}; nothing points at one chipset.")
}

/// Returns the input shape that the slow runs have.
fn shape_of(reasons: &[Reason]) -> Option<String> {
    reasons.iter().find_map(|reason| match reason {
        Reason::InputShape { shape, .. } => Some(in_sentence(shape)),
        _ => None,
    })
}

/// Returns the first inner output that is off.
fn first_off(reasons: &[Reason]) -> Option<String> {
    reasons.iter().find_map(|reason| match reason {
        Reason::OutputDrop { drop } => drop.first_off.as_deref().map(in_sentence),
        _ => None,
    })
}

/// Returns the step for a runtime that is new on all devices.
fn is_by_policy(reason: &Reason) -> bool {
    matches!(reason, Reason::UnknownEp { ep } if SelectionPolicy::of_request(ep).is_some())
}

fn new_runtime(reasons: &[Reason]) -> Option<String> {
    let runtimes = reasons.iter().find_map(|reason| match reason {
        Reason::CohortMoved { new_runtimes, .. } | Reason::Everywhere { new_runtimes, .. } => {
            Some(new_runtimes).filter(|new| !new.is_empty())
        }
        Reason::OnRuntime { runtimes } => Some(runtimes),
        _ => None,
    });
    let runtimes = in_sentence(&runtimes?.join(", "));
    Some(format!(
        "Compare the same model with the runtime {runtimes} and with the previous version's, session by session"
    ))
}

/// The data of a verdict that decide the steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) key: &'a CohortKey,
    pub(crate) class: VerdictClass,
    pub(crate) reasons: &'a [Reason],
    pub(crate) cpu_ops: &'a [String],
    pub(crate) change: Option<&'a PlacementChange>,
    /// The version before, if it is worth keeping.
    pub(crate) previous_version: Option<&'a str>,
    /// The commonest code of failed starts.
    pub(crate) commonest_code: Option<&'a (String, u64)>,
    pub(crate) cpu_alone: Option<CpuAlone>,
}

/// Returns the next steps for a verdict. The first one serves users best, as far as measurements show.
#[must_use]
pub(crate) fn next_step(of: Situation<'_>) -> String {
    let Situation {
        key,
        class,
        reasons,
        change,
        ..
    } = of;
    let chipset = in_sentence(&key.chipset);
    let not_the_version = not_the_version(reasons, change);
    match class {
        VerdictClass::TotalFallback
        | VerdictClass::PartialFallback
        | VerdictClass::SomeDevicesFallback => {
            let ops = match of.cpu_ops {
                [] => "its nodes".to_owned(),
                ops => in_sentence(&ops.join(", ")),
            };
            let previous = of.previous_version.filter(|_| not_the_version.is_none());
            let why = not_the_version.map_or(String::new(), |why| format!("\n{why}."));
            format!(
                "{}\nThe model's owner: {}{why}",
                on_call(key, previous, of.cpu_alone),
                why_refused(key, &ops)
            )
        }
        VerdictClass::NpuStartFailure => {
            let code = change
                .and_then(PlacementChange::backend_code)
                .map(|(code, _)| code);
            let code = code.or_else(|| known_code(of.commonest_code?));
            let what = what_to_check(code);
            let may_have_none = |reason: &Reason| {
                matches!(
                    reason,
                    Reason::NpuStart {
                        is_unheard_of: true,
                        ..
                    }
                )
            };
            if reasons.iter().any(may_have_none) {
                return format!(
                    "If {chipset} has no NPU for this app, do not ask for it there; if it has one, certify \
                     a placement on it, and check {what}."
                );
            }
            if code == Some(ReasonCode::EpcontextIncompatible) {
                return format!(
                    "{}\nThe model's owner: {}",
                    npu_off(key, "On call, if sessions that fail cost users"),
                    compile_again(reasons)
                );
            }
            let why = not_the_version.map_or(String::new(), |why| format!("\n{why}."));
            format!(
                "{}\nThe app's owner: check {what}; the SDK's explain() on one of these devices names the \
                 cause.{why}",
                npu_off(key, "On call, if sessions that fail cost users")
            )
        }
        VerdictClass::CompiledForAnother => {
            format!("The model's owner: {}", compile_again(reasons))
        }
        VerdictClass::SlowWithoutPlacement => {
            let with = shape_of(reasons).map_or(String::new(), |shape| {
                format!(" with inputs of the shape {shape}")
            });
            let compare = || {
                format!(
                    "Compare the model with the version before on {chipset}{with}, session by session"
                )
            };
            let what = not_the_version
                .or_else(|| new_runtime(reasons))
                .unwrap_or_else(compare);
            format!(
                "{what}; if placements are `unavailable` there, move to ONNX Runtime 1.24 or newer to \
                 see them."
            )
        }
        VerdictClass::DataQuality
            if reasons
                .iter()
                .any(|reason| matches!(reason, Reason::UncertifiedRuntime { .. })) =>
        {
            format!(
                "Certify version {} with the runtime that these devices have (`epwatch gate --certify`).",
                in_sentence(&key.model_version)
            )
        }
        VerdictClass::DataQuality if reasons.iter().any(is_by_policy) => {
            "The app's owner: look at whether the EP's plugin is registered on these devices, and name its EP in the request \
             if it is; docs/accelerators.md says what a policy leaves open."
                .to_owned()
        }
        VerdictClass::DataQuality
            if reasons
                .iter()
                .any(|reason| matches!(reason, Reason::UnknownEp { .. })) =>
        {
            "The app's owner: register the plugin under ONNX Runtime's own name of its EP, for Qualcomm's plugin under a \
             name that begins with QNN; docs/accelerators.md has all names."
                .to_owned()
        }
        VerdictClass::DataQuality => {
            "Nothing to do for the model; placements compare again once a version has settled on \
             the new runtime."
                .to_owned()
        }
        VerdictClass::ThermalOrLoad => {
            "Nothing to do for the model; look at heat and load of these devices if it lasts."
                .to_owned()
        }
        VerdictClass::NotEnoughData => {
            "Wait for more devices, or certify a placement to compare with.".to_owned()
        }
        VerdictClass::Healthy => String::new(),
        VerdictClass::IntermittentFallback if shape_of(reasons).is_some() => format!(
            "The model's owner: run it on {chipset} with inputs of the shape {} and look at the placement of such a session; \
             others are as fast as before.",
            shape_of(reasons).unwrap_or_default()
        ),
        VerdictClass::IntermittentFallback => format!(
            "The app's owner: look for sessions that are made again on {chipset} (a DSP restart, memory \
             pressure) and for inputs that take another path; the devices' placements show whether runs \
             move between them."
        ),
        VerdictClass::WrongOutputs => {
            let find = match first_off(reasons) {
                Some(output) => format!("compare the op that makes {output} with the CPU's there; it is the first one off"),
                None => "run the golden input there with inner outputs exposed to find the first op that differs".to_owned(),
            };
            let why = not_the_version.map_or(String::new(), |why| format!("\n{why}."));
            format!(
                "{}\nThe model's owner: {find}.{why}",
                npu_off(key, "On call, if its answers matter")
            )
        }
        VerdictClass::QuantisationLoss => {
            let keep = match first_off(reasons) {
                Some(output) => format!("keep the layer that makes {output} in 16 bits; it is the first one off"),
                None => "keep the layer that loses them in 16 bits; the golden input with inner outputs exposed names it"
                    .to_owned(),
            };
            let on_call = match of.previous_version.map(in_sentence) {
                Some(previous) => format!(
                    "On call, if its answers matter: keep version {previous}, and stop the roll-out of {} on all chipsets.",
                    in_sentence(&key.model_version)
                ),
                None => npu_off(key, "On call, if its answers matter"),
            };
            format!("{on_call}\nThe model's owner: {keep}. No driver or firmware mends it.")
        }
        VerdictClass::CvSpike => format!(
            "The app's owner: look at what else runs on {chipset} at the same time, and at the performance \
             mode that the session requests; the latency chart by device shows whether all runs spread or \
             some jump."
        ),
    }
}

/// Whether a chipset has a name that commands accept. Other names are the platform's own text, or empty.
fn is_named(chipset: &str) -> bool {
    !chipset.contains(':') && !chipset.starts_with("__")
}

/// Whether a directive can address the cohort, and nothing beyond its version and chipset. Sessions of another
/// accelerator than the chipset's NPU are a cohort of their own, and a directive cannot name them.
fn takes_directive(chipset: &str) -> bool {
    is_named(chipset) && split_cohort(chipset).1.is_none()
}

/// Returns the steps of the person on call if work moved to the CPU. The version before comes first, because it ran on
/// the NPU. The CPU alone is left out if it is slower than the current state.
fn on_call(key: &CohortKey, previous: Option<&str>, cpu_alone: Option<CpuAlone>) -> String {
    let [chipset, version] = [&key.chipset, &key.model_version].map(|name| in_sentence(name));
    let mut steps = String::new();
    if let Some(previous) = previous.map(in_sentence) {
        steps = format!(
            "On call: keep version {previous} on {chipset}, and stop the roll-out of {version} there."
        );
        if takes_directive(&key.chipset) {
            let variant = directive(key, "--variant NAME", "variant");
            steps += &format!("\nWhere the app has {previous} as a variant, NAME: {variant}");
        }
    }
    let measured = cpu_alone.map(|of| {
        let devices = counted(of.devices, "device");
        let (cpu, hit) = (latency(of.p50_us), latency(of.hit_p50_us));
        format!("the CPU alone takes {cpu} ({devices}), the devices hit take {hit}")
    });
    let is_slower = cpu_alone.is_some_and(|of| of.p50_us >= of.hit_p50_us);
    let (between, last) = match measured {
        // This is a note on the step before, not a step.
        Some(measured) if is_slower => (' ', format!("Not `--npu-off`: {measured}.")),
        Some(measured) => ('\n', npu_off(key, &format!("On call, since {measured}"))),
        None => (
            '\n',
            npu_off(key, "On call, if the CPU alone serves users better"),
        ),
    };
    if !steps.is_empty() {
        steps.push(between);
    }
    steps + &last
}

/// Returns the step that takes the model off the NPU.
fn npu_off(key: &CohortKey, when: &str) -> String {
    if !is_named(&key.chipset) {
        return format!(
            "The platform named no chipset (`{}`), so neither a directive nor `epwatch inspect` fits these \
             devices: have the app set it in the SDK (`with_device`).",
            in_sentence(&key.chipset)
        );
    }
    if let (chipset, Some(accelerator)) = split_cohort(&key.chipset) {
        let [chipset, accelerator] = [chipset, accelerator].map(in_sentence);
        return format!(
            "{when}: have the app stop asking for {accelerator} on {chipset}. No directive is that narrow: `--npu-off` would \
             also reach the sessions that ask for QNN there."
        );
    }
    format!("{when}: {}", directive(key, "--npu-off", "npu-off"))
}

/// Returns the commands to paste that make and publish a directive. The names come from devices. The sentence ends with
/// the commands, without a full stop, because pages show them as a block of their own.
fn directive(key: &CohortKey, action: &str, file: &str) -> String {
    let model = &key.model;
    let names = [
        &*model.app_id,
        &model.model_id,
        &key.model_version,
        &key.chipset,
    ];
    let [app, name, version, chipset] = names.map(quoted);
    // A name that begins with a dash is read as a value only after an equals sign.
    format!(
        "`epwatch directive make {action} --app={app} --model={name} --model-version={version} --chipset={chipset} \
         --for 7d --key PRIVATE_KEY_FILE --out {file}.directive && epwatch directive publish {file}.directive`"
    )
}

/// Returns an argument that a shell reads unchanged. Invisible characters, and the backtick, which would end the code
/// of a step, are written as bytes: `$'\xNN'`.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !name.is_empty() && name.chars().all(is_plain) {
        return name.to_owned();
    }
    let is_seen = |c: char| c != '`' && visible(c.encode_utf8(&mut [0; 4])).chars().eq([c]);
    if name.chars().all(is_seen) {
        return format!("'{}'", name.replace('\'', r"'\''"));
    }
    let mut text = String::from("$'");
    for c in name.chars() {
        match c {
            '\'' | '\\' => text.extend(['\\', c]),
            c if is_seen(c) => text.push(c),
            c => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a String cannot fail.
                    _ = write!(text, "\\x{byte:02x}");
                }
            }
        }
    }
    text.push('\'');
    text
}

/// Returns a name in the form that sentences of a step use.
fn in_sentence(name: &str) -> String {
    visible(name).replace('`', "[U+0060]")
}

/// Returns the step that finds the reason for each node.
fn why_refused(key: &CohortKey, ops: &str) -> String {
    if !is_named(&key.chipset) {
        return format!("ask why the NPU of these devices refuses {ops}.");
    }
    if !of_cohort(&key.chipset).is_plain_npu() {
        return format!(
            "ask why the NPU of {} refuses {ops}; ONNX Runtime's verbose log of one session names the nodes that its EP \
             did not take.",
            in_sentence(split_cohort(&key.chipset).0)
        );
    }
    let names = [&key.chipset, &key.model.model_id, &key.model_version];
    let [chipset, model, version] = names.map(|name| in_sentence(name));
    format!(
        "ask why the NPU of {chipset} refuses {ops}. With the file of {model} {version} as MODEL, this gives the reason \
         of each node: `epwatch inspect MODEL --soc={}`",
        quoted(&key.chipset)
    )
}

/// The next step for a compiled model that is not for these devices.
fn compile_again(reasons: &[Reason]) -> String {
    let place = match firmware_of(reasons) {
        Some(firmware) => format!("firmware {}", in_sentence(firmware)),
        None => "the chipset or the runtime of these devices".to_owned(),
    };
    format!(
        "the compiled model is not for {place}. Compile it again for these devices, or ship the model that it was \
         compiled from, which each device compiles for itself."
    )
}

/// The firmware on which the fault occurs.
fn firmware_of(reasons: &[Reason]) -> Option<&str> {
    reasons.iter().find_map(|reason| match reason {
        Reason::Firmware { firmware, .. } => Some(firmware.as_str()),
        _ => None,
    })
}

/// The next step if a rollback to the version before would not help.
fn not_the_version(reasons: &[Reason], change: Option<&PlacementChange>) -> Option<String> {
    if let Some(firmware) = firmware_of(reasons) {
        let ask = "ask what that update changed before you take a version back";
        let firmware = in_sentence(firmware);
        return Some(format!("It comes with firmware {firmware}: {ask}"));
    }
    if reasons
        .iter()
        .any(|reason| matches!(reason, Reason::SlowerMake { .. }))
    {
        let text = "They are compared with the chipset's other devices, not with a version before: the SDK's explain() on one of \
                    them names what keeps it off the NPU";
        return Some(text.to_owned());
    }
    let runtime = reasons.iter().find_map(|reason| match reason {
        Reason::CommonRuntime { runtime, .. } => Some(runtime),
        _ => None,
    });
    if let Some(runtime) = runtime {
        let runtime = in_sentence(runtime);
        return Some(format!(
            "It comes with the runtime {runtime}: compare the app's release with it against the one before, before you take \
             a version back"
        ));
    }
    let says = |is_it: fn(&Reason) -> bool| reasons.iter().any(is_it);
    if says(|reason| matches!(reason, Reason::PeerControl { slowed: true, .. })) {
        let text = "All models on these devices are slower: look for updates of firmware, system or app \
                    that keep them off the NPU";
        return Some(text.to_owned());
    }
    if says(|reason| matches!(reason, Reason::SameVersion { .. })) {
        let text = "The version did not change: look for updates of firmware, system or app on these devices since it was \
                    fast";
        return Some(text.to_owned());
    }
    let began_within = change.is_some_and(|change| change.origin == Origin::SameVersion);
    let previous_too =
        says(|reason| matches!(reason, Reason::PreviousVersionControl { slowed: true, .. }));
    (began_within || previous_too).then(|| {
        "It came without a new version of the model: look for updates of firmware, system or app on these \
         devices"
            .to_owned()
    })
}

/// Returns what the app's owner checks for a code of a failed start, in words that follow `check`.
fn what_to_check(code: Option<ReasonCode>) -> String {
    let text = match code {
        Some(ReasonCode::BackendLibraryMissing | ReasonCode::NativeLibraryNotDeclared) => {
            "that the app packages the NPU's back-end library"
        }
        Some(ReasonCode::SkelLibraryMissing) => {
            "that the app packages the skel library of this Hexagon version where the DSP looks for it"
        }
        Some(ReasonCode::QnnVersionsDiffer) => {
            "that all QNN libraries of the app are of one QAIRT release"
        }
        Some(ReasonCode::SocModelUnknown) => {
            "the soc_model option, which this runtime has no entry for"
        }
        Some(code @ ReasonCode::DeviceCreationFailed) => {
            let causes: Vec<&str> = code.causes().iter().map(|cause| cause.as_str()).collect();
            return format!(
                "the causes of {code} in this order: {} (`epwatch explain {code}`)",
                causes.join(", ")
            );
        }
        Some(ReasonCode::EpTooOldForOrt) => "that the QNN plugin is new enough for ONNX Runtime",
        Some(ReasonCode::EpcontextWithoutEp) => {
            "that the session asks for the EP that the model was compiled for"
        }
        _ => "backend_path and the vendor's libraries on these devices",
    };
    text.to_owned()
}

/// Returns the reason code if it has a step of its own.
fn known_code((code, _): &(String, u64)) -> Option<ReasonCode> {
    let known = [
        ReasonCode::BackendLibraryMissing,
        ReasonCode::NativeLibraryNotDeclared,
        ReasonCode::SkelLibraryMissing,
        ReasonCode::QnnVersionsDiffer,
        ReasonCode::SocModelUnknown,
        ReasonCode::DeviceCreationFailed,
        ReasonCode::EpTooOldForOrt,
        ReasonCode::EpcontextIncompatible,
        ReasonCode::EpcontextWithoutEp,
    ];
    known.into_iter().find(|known| known.as_str() == code)
}

#[cfg(test)]
mod tests {
    use crate::judge::baseline::Baseline;
    use crate::judge::placement::tests::placed;
    use crate::judge::window::LowQuantiles;
    use crate::testing::{Fleet, failed_starts, judged, judged_with_peers, peers, reference};
    use epwatch_model::{CohortVerdict, VerdictClass};

    #[track_caller]
    fn check(verdict: &CohortVerdict, class: VerdictClass, says: &str) {
        let next = &verdict.next_step;
        assert_eq!(verdict.class, class, "{:#?}", verdict.reasons);
        assert!(next.contains(says), "{next}");
        assert!(!next.contains("keep version 1.0.0"), "{next}");
    }

    #[test]
    fn a_device_that_was_not_opened_has_its_causes_in_order() {
        let text = super::what_to_check(super::ReasonCode::from_name("device_creation_failed"));
        let order = "skel_library_missing, native_library_not_declared, qnn_versions_differ";
        assert!(text.contains(order), "{text}");
    }

    /// Devices on the version before lost the NPU through the same update.
    #[test]
    fn a_version_that_is_broken_too_is_not_worth_keeping() {
        let mut window = Fleet::with_fallback(0.4).window();
        for vote in &mut window.votes[..26] {
            vote.firmware = "f2".into();
        }
        let verdict = judged(&window, None, &reference());
        let says = "It comes with firmware f2";
        check(&verdict, VerdictClass::SomeDevicesFallback, says);

        let lost = Fleet {
            slow_factor: 20.0,
            ..Fleet::with_fallback(1.0)
        };
        let before = Fleet {
            version: "1.0.0",
            before: Some("0.9.0"),
            ..lost.clone()
        };
        let verdict = judged(&lost.window(), Some(&before.window()), &reference());
        let says = "It came without a new version";
        check(&verdict, VerdictClass::PartialFallback, says);
    }

    /// The person on call pastes it; the names come from devices.
    #[test]
    fn the_directive_is_ready_to_paste_and_is_quoted() {
        let mut window = Fleet::with_fallback(1.0).window();
        window.key.model.model_id = "it's; rm".into();
        let next = judged(&window, None, &reference()).next_step;
        let command = "directive make --npu-off --app=camera --model='it'\\''s; rm' --model-version=2.0.0 \
                       --chipset=SM8635 --for 7d";
        assert!(next.contains(command), "{next}");
        let file = "With the file of it's; rm 2.0.0 as MODEL";
        assert!(next.contains(file), "{next}");
    }

    /// Parts of names that a shell, an option's parser or a reader could take for something else.
    const PARTS: &[&str] = &[
        "-",
        "--key",
        "'",
        "\"",
        "`",
        "$(touch x)",
        "`touch x`",
        "\\",
        "\\n",
        "\u{202e}",
        "\u{200b}",
        "\u{feff}",
        "\t",
        "\u{7}",
        "[int8]",
        "<b>",
        "&& touch x",
        "; touch x",
        "| touch x",
        "> x",
        "*",
        "~",
        "!!",
        "#",
        " ",
        "é",
        "界",
        "{a,b}",
        "$HOME",
        "${x}",
        "=",
        "%27",
        "f\u{200b}f",
    ];

    /// The commands of steps, as a person copies them: between backticks.
    fn commands(next_step: &str) -> Vec<String> {
        let code = next_step.split('`').skip(1).step_by(2);
        let commands = code.filter(|code| code.starts_with("epwatch "));
        commands.map(str::to_owned).collect()
    }

    /// Runs each command in a real shell whose `epwatch` prints its arguments.
    #[test]
    fn a_pasted_command_has_the_names_whatever_they_are() {
        let names: Vec<String> = (0..200)
            .map(|n| {
                let parts = [n % PARTS.len(), n / 2 % PARTS.len(), 7 * n % PARTS.len()];
                parts.map(|at| PARTS[at]).concat() + &"x".repeat(n / 100)
            })
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let mut script =
            String::from("epwatch() { for a in \"$@\"; do printf '%s\\0' \"$a\"; done; }\n");
        let mut expected = Vec::new();
        for name in &names {
            let mut window = Fleet::with_fallback(1.0).window();
            (window.key.model.model_id, window.key.model_version) = (name.clone(), name.clone());
            window.key.model.app_id = name.clone();
            window.key.chipset = name.clone();
            let next = judged(&window, None, &reference()).next_step;
            assert!(next.lines().count() <= 4, "{next}");
            // The shown text has no invisible characters.
            assert!(
                !next.contains(['\u{202e}', '\u{200b}', '\u{7}', '\t']),
                "{next}"
            );
            let commands = commands(&next);
            assert_eq!(commands.len(), 3, "{next}");
            for command in &commands {
                script += &format!("{command}\n");
                let named: &[&str] = match command.starts_with("epwatch inspect ") {
                    true => &["--soc"],
                    false => &["--app", "--model", "--model-version", "--chipset"],
                };
                expected.extend(named.iter().map(|option| format!("{option}={name}")));
            }
        }
        let ran = std::process::Command::new("bash")
            .args(["--norc", "-c", &script])
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
        let arguments = String::from_utf8(ran.stdout).unwrap();
        let options = [
            "--app=",
            "--model=",
            "--model-version=",
            "--chipset=",
            "--soc=",
        ];
        let given = arguments.split('\0');
        let given = given.filter(|arg| options.iter().any(|option| arg.starts_with(option)));
        assert!(given.eq(expected.iter()), "{script}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// The version before ran on the NPU, so it serves users best.
    #[test]
    fn the_version_before_comes_before_the_cpu() {
        let next = judged(&Fleet::with_fallback(1.0).window(), None, &reference()).next_step;
        let steps = [
            "On call: keep version 1.0.0 on SM8635, and stop the roll-out of 2.0.0 there.",
            "Where the app has 1.0.0 as a variant, NAME: `epwatch directive make --variant NAME --app=camera",
            "On call, if the CPU alone serves users better: `epwatch directive make --npu-off",
            "The model's owner: ",
        ];
        let places: Vec<usize> = steps
            .iter()
            .map(|step| next.find(step).unwrap_or_else(|| panic!("{step}: {next}")))
            .collect();
        assert!(places.is_sorted(), "{next}");
    }

    /// The devices hit take 24 ms. Some devices always had all of the model on the CPU.
    #[track_caller]
    fn with_cpu_alone(p50_us: f64) -> String {
        let mut window = Fleet::with_fallback(1.0).window();
        for vote in &mut window.votes[..2] {
            vote.placement = std::sync::Arc::new(placed(22, 0, 25, Some(0.0)));
            let latency = vote.latency.as_mut().unwrap();
            latency.low = Some(LowQuantiles {
                p10_us: 0.9 * p50_us,
                p50_us,
            });
        }
        // One of these devices made sessions with another graph too.
        let mut again = window.votes[0].clone();
        again.placement = std::sync::Arc::new(placed(23, 0, 24, Some(0.0)));
        window.votes.push(again);
        let verdict = judged(&window, None, &reference());
        assert_eq!(verdict.class, VerdictClass::PartialFallback);
        verdict.next_step
    }

    #[test]
    fn the_cpu_alone_is_not_proposed_where_it_was_measured_slower() {
        let next = with_cpu_alone(181_000.0);
        let says =
            "Not `--npu-off`: the CPU alone takes 181 ms (2 devices), the devices hit take 2";
        assert!(next.contains(says), "{next}");
        assert!(!next.contains("make --npu-off"), "{next}");
        let next = with_cpu_alone(12_000.0);
        let says = "On call, since the CPU alone takes 12.0 ms (2 devices), the devices hit take 2";
        assert!(next.contains(says), "{next}");
        assert!(next.contains("make --npu-off"), "{next}");
    }

    #[test]
    fn a_chipset_without_a_name_is_in_no_command() {
        for chipset in ["other:unknown", "__other__"] {
            let mut window = Fleet::with_fallback(1.0).window();
            window.key.chipset = chipset.into();
            let next = judged(&window, None, &reference()).next_step;
            assert!(
                !next.contains("--soc") && !next.contains("--chipset"),
                "{next}"
            );
            assert!(next.contains("with_device"), "{next}");
        }
    }

    #[test]
    fn where_all_models_slowed_down_this_one_is_not_compared() {
        let slow = Fleet {
            weight: 20.0,
            ..Fleet::default()
        };
        let window = slow.window();
        let verdict = judged_with_peers(&window, None, &peers(&window.votes), &reference());
        let says = "All models on these devices are slower";
        check(&verdict, VerdictClass::SlowWithoutPlacement, says);
    }

    /// A fleet in which an update of the firmware makes the context binary useless.
    #[test]
    fn a_compiled_model_that_is_not_for_a_firmware_is_compiled_again() {
        let mut window = Fleet::default().window();
        window.device_events.failed_starts =
            failed_starts(100..120, "f2", "epcontext_incompatible");
        let verdict = judged(&window, None, &reference());
        let says = "The model's owner: the compiled model is not for firmware f2. Compile it again";
        check(&verdict, VerdictClass::NpuStartFailure, says);
        let first = verdict.reason_texts().next().unwrap();
        let says = "epcontext_incompatible on 20; the compiled model is not for them";
        assert!(first.contains(says), "{first}");

        window.device_events.failed_starts =
            failed_starts(100..120, "f1", "epcontext_incompatible");
        let verdict = judged(&window, None, &reference());
        let says = "not for the chipset or the runtime of these devices";
        check(&verdict, VerdictClass::NpuStartFailure, says);
    }

    #[test]
    fn a_chipset_that_may_have_no_npu_is_not_asked_for_its_libraries_first() {
        let mut window = Fleet::default().window();
        window.votes.clear();
        window.device_events.failed_starts = failed_starts(0..20, "f1", "backend_setup_failed");
        let says = "If SM8635 has no NPU for this app, do not ask for it there";
        let verdict = judged(&window, None, &Baseline::default());
        check(&verdict, VerdictClass::NpuStartFailure, says);
        let known = judged(&window, None, &reference());
        let says = "check backend_path";
        check(&known, VerdictClass::NpuStartFailure, says);
    }
}
