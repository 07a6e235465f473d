//! `make`, `sign` and `show`, which only work on files, without a store.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::ArgGroup;
use epwatch_collector::directives::store::action_name;
use epwatch_proto::{
    Chipset, Directive, DirectiveAction, DirectiveScope, SignedDirective,
    accelerator::split_cohort,
    chipset::{SOCS, Soc},
    directive, hex, unhex,
};
use epwatch_server::Period;
use jiff::Timestamp;
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{ED25519, UnparsedPublicKey},
};
use serde::Serialize;
use strsim::damerau_levenshtein;

use super::file::{self, Content};
use crate::{output, signing_key::SigningKey};

/// Makes a directive; with --key a signed one.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("action").required(true).multiple(false))]
pub(super) struct MakeArgs {
    /// Do not use the NPU.
    #[arg(long, group = "action")]
    npu_off: bool,
    /// Record nothing.
    #[arg(long, group = "action")]
    recording_off: bool,
    /// Record one run in N.
    #[arg(long, group = "action", value_name = "N")]
    sampling: Option<u32>,
    /// Seal a report this often, for example 15m.
    #[arg(long, group = "action", value_name = "PERIOD")]
    interval: Option<Period>,
    /// Load this variant of the model if the app has it.
    #[arg(long, group = "action", value_name = "NAME")]
    variant: Option<String>,
    /// Forget an earlier directive; `epwatch directive revoke` makes and publishes it at once.
    #[arg(long, group = "action", value_name = "ID")]
    revoke: Option<String>,
    #[command(flatten)]
    scope: ScopeArgs,
    /// Make it for every device of every app on the collectors, with no field of a scope.
    #[arg(long, conflicts_with_all = ["app", "model", "model_version", "chipset", "firmware"])]
    everyone: bool,
    /// Take --chipset as it is, also if no Qualcomm chipset has the name.
    #[arg(long, requires = "chipset")]
    unlisted_chipset: bool,
    /// Unique for ever [default: made up].
    #[arg(long)]
    id: Option<String>,
    /// Holds from then on, for example 2026-11-21T12:00:00Z [default: now].
    #[arg(long, value_name = "TIME")]
    not_before: Option<Timestamp>,
    /// Holds until then, at most 90 days after its begin.
    #[arg(long, value_name = "TIME", conflicts_with = "duration")]
    expires: Option<Timestamp>,
    /// Holds for this long [default: 7d].
    #[arg(long = "for", value_name = "PERIOD", id = "duration")]
    duration: Option<Period>,
    /// Sign it with this private key at once.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Where it goes; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print the directive as one JSON document.
    #[arg(long)]
    json: bool,
}

/// Scope of a directive. An empty field matches everything.
#[derive(Debug, Clone, clap::Args, Serialize)]
struct ScopeArgs {
    #[arg(long, value_name = "APP_ID", default_value = "")]
    app: String,
    #[arg(long, value_name = "MODEL_ID", default_value = "")]
    model: String,
    #[arg(long, value_name = "VERSION", default_value = "")]
    model_version: String,
    /// Normalised, for example SM8650.
    #[arg(long, value_name = "SOC", default_value = "")]
    chipset: String,
    /// The vendor fingerprint's hash, as dashboards show it.
    #[arg(long, value_name = "HASH", default_value = "")]
    firmware: String,
}

/// Signs the exact bytes of a directive that `make` wrote.
#[derive(Debug, clap::Args)]
pub(super) struct SignArgs {
    /// The directive; `-` is standard input.
    file: PathBuf,
    /// The private key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Where the signed directive goes; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print the directive as one JSON document.
    #[arg(long)]
    json: bool,
}

/// Shows a directive, and whether a public key verifies it.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// A signed or unsigned directive; `-` is standard input.
    file: PathBuf,
    /// Check the signature with this public key (64 hexadecimal digits); exit code 1 if it is wrong.
    #[arg(long, value_name = "HEX")]
    public_key: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The document of a directive.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DirectiveDocument {
    pub(super) id: String,
    action: &'static str,
    /// The action's number or name, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    scope: ScopeArgs,
    not_before: String,
    pub(super) expires: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

impl ScopeArgs {
    fn fields(&self) -> [(&'static str, &String); 5] {
        [
            ("app", &self.app),
            ("model", &self.model),
            ("version", &self.model_version),
            ("chipset", &self.chipset),
            ("firmware", &self.firmware),
        ]
    }
}

impl DirectiveDocument {
    pub(super) fn of(directive: &Directive, signed: Option<&SignedDirective>) -> Self {
        let scope = directive.scope.clone();
        Self {
            id: directive.id.clone(),
            action: action_name(&directive.action),
            value: match &directive.action {
                DirectiveAction::Sampling(one_in) => Some(one_in.to_string()),
                DirectiveAction::ReportIntervalMs(ms) => Some(format!("{ms}ms")),
                DirectiveAction::NpuOff | DirectiveAction::RecordingOff => None,
                DirectiveAction::PreferredVariant(name) => Some(name.clone()),
                DirectiveAction::Revoke(id) => Some(id.clone()),
            },
            scope: ScopeArgs {
                app: scope.app_id,
                model: scope.model_id,
                model_version: scope.model_version,
                chipset: scope.chipset,
                firmware: scope.vendor_fingerprint_hash,
            },
            not_before: time_text(directive.not_before_unix_ms),
            expires: time_text(directive.expires_unix_ms),
            key_id: signed.map(|signed| signed.key_id.clone()),
            signature: signed.map(|signed| hex(&signed.signature)),
        }
    }

    /// Returns the document as a line of text.
    pub(super) fn line(&self) -> String {
        let named: Vec<String> = self
            .scope
            .fields()
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let whom = match named.is_empty() {
            true => "everyone".to_owned(),
            false => named.join(", "),
        };
        let value = self
            .value
            .as_ref()
            .map(|v| format!(" {v}"))
            .unwrap_or_default();
        format!(
            "{}  {}{value}  for {whom}  {} to {}",
            self.id, self.action, self.not_before, self.expires
        )
    }
}

fn time_text(unix_ms: i64) -> String {
    Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |at| at.to_string())
}

/// Checks the encoded directive, so that no file has a directive that devices refuse.
pub(super) fn checked(directive: Directive) -> anyhow::Result<Directive> {
    Directive::parse(&directive.to_bytes()).context("failed to make the directive")
}

/// A unique id: the action and 64 random bits.
pub(super) fn made_up_id(action: &DirectiveAction) -> anyhow::Result<String> {
    let mut random = [0; 8];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| anyhow::anyhow!("failed to make an id: the system gives no randomness"))?;
    Ok(format!(
        "{}-{}",
        action_name(action).replace('_', "-"),
        hex(&random)
    ))
}

impl MakeArgs {
    /// Returns the chipset as devices report it. A name that no device has would address no device.
    fn chipset(&self) -> anyhow::Result<String> {
        let asked = &self.scope.chipset;
        if let (chipset, Some(accelerator)) = split_cohort(asked) {
            bail!(
                "--chipset {asked}: a directive names a chipset, and none of its accelerators: with {chipset} it would reach \
                 sessions on the NPU of {chipset} too. Give --chipset {chipset} if it should; otherwise have the app stop \
                 asking for {accelerator} there"
            );
        }
        if asked.is_empty() || self.unlisted_chipset {
            return Ok(asked.clone());
        }
        let chipset = Chipset::normalise(asked, "", "");
        if chipset.soc().is_some() {
            return Ok(chipset.as_str().to_owned());
        }
        let distance = |soc: &&Soc| damerau_levenshtein(&asked.to_ascii_uppercase(), soc.soc);
        let nearest = SOCS.iter().min_by_key(distance);
        let nearest = nearest.map_or("", |soc| soc.soc);
        bail!(
            "--chipset {asked}: is not a Qualcomm chipset; did you mean {nearest}? --unlisted-chipset takes it as it is"
        )
    }

    fn directive(&self) -> anyhow::Result<Directive> {
        let action = if self.npu_off {
            DirectiveAction::NpuOff
        } else if self.recording_off {
            DirectiveAction::RecordingOff
        } else if let Some(one_in) = self.sampling {
            DirectiveAction::Sampling(one_in)
        } else if let Some(interval) = self.interval {
            DirectiveAction::ReportIntervalMs(
                u64::try_from(interval.0.as_millis()).unwrap_or(u64::MAX),
            )
        } else if let Some(variant) = &self.variant {
            DirectiveAction::PreferredVariant(variant.clone())
        } else if let Some(id) = &self.revoke {
            DirectiveAction::Revoke(id.clone())
        } else {
            bail!(
                "give one of --npu-off, --recording-off, --sampling, --interval, --variant and --revoke"
            );
        };
        let begin = self
            .not_before
            .map_or_else(now_unix_ms, |at| at.as_millisecond());
        let week = Period(std::time::Duration::from_secs(7 * 86_400));
        let length = self.duration.unwrap_or(week).0.as_millis();
        let expires = match self.expires {
            Some(at) => at.as_millisecond(),
            None => begin.saturating_add(i64::try_from(length).unwrap_or(i64::MAX)),
        };
        let scope = &self.scope;
        let is_for_everyone = scope.fields().iter().all(|(_, value)| value.is_empty());
        // A revocation has no effect beyond the directive that it names.
        if is_for_everyone && !self.everyone && self.revoke.is_none() {
            bail!(
                "no scope is named: give --app, --model and --chipset, or --everyone for every device of every \
                 app on the collectors"
            );
        }
        checked(Directive {
            id: match &self.id {
                Some(id) => id.clone(),
                None => made_up_id(&action)?,
            },
            scope: DirectiveScope {
                app_id: scope.app.clone(),
                model_id: scope.model.clone(),
                model_version: scope.model_version.clone(),
                chipset: self.chipset()?,
                vendor_fingerprint_hash: scope.firmware.clone(),
            },
            action,
            not_before_unix_ms: begin,
            expires_unix_ms: expires,
        })
    }
}

pub(super) fn make(args: &MakeArgs) -> anyhow::Result<ExitCode> {
    let directive = match args.directive() {
        Ok(directive) => directive,
        Err(error) => return Ok(output::wrong_use(&error)),
    };
    let bytes = directive.to_bytes();
    let signed = match &args.key {
        Some(key) => Some(file::signed(
            &SigningKey::read_for_directives(key)?,
            bytes.clone(),
        )),
        None => None,
    };
    let bytes = signed.as_ref().map_or(bytes, file::encode);
    write_and_say(
        &args.out,
        &bytes,
        &DirectiveDocument::of(&directive, signed.as_ref()),
        args.json,
    )
}

pub(super) fn sign(args: &SignArgs) -> anyhow::Result<ExitCode> {
    let Content::Unsigned(bytes) = file::read(&args.file)? else {
        bail!("{} is signed already", args.file.display());
    };
    let directive = Directive::parse(&bytes)?;
    let signed = file::signed(&SigningKey::read_for_directives(&args.key)?, bytes);
    let document = DirectiveDocument::of(&directive, Some(&signed));
    write_and_say(&args.out, &file::encode(&signed), &document, args.json)
}

fn write_and_say(
    out: &std::path::Path,
    bytes: &[u8],
    document: &DirectiveDocument,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if out == std::path::Path::new("-") {
        if json {
            bail!(
                "--json needs --out FILE: standard output holds either the bytes or the document"
            );
        }
        file::write(out, bytes)?;
        return Ok(ExitCode::SUCCESS);
    }
    file::write(out, bytes)?;
    if json {
        output::json(document)?;
    } else {
        output::line(document.line())?;
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct ShowDocument {
    #[serde(flatten)]
    document: DirectiveDocument,
    /// Absent unless a public key was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
}

pub(super) fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let content = file::read(&args.file)?;
    let (directive, signed) = match &content {
        Content::Signed(signed) => (signed.parse_directive()?, Some(signed)),
        Content::Unsigned(bytes) => (Directive::parse(bytes)?, None),
    };
    let verified = match &args.public_key {
        None => None,
        Some(text) => {
            let key = unhex(text).filter(|key| key.len() == 32);
            let key = key.context("--public-key: expected 64 hexadecimal digits")?;
            let verify = |signed: &&SignedDirective| {
                UnparsedPublicKey::new(&ED25519, &key)
                    .verify(&signed.directive, &signed.signature)
                    .is_ok()
            };
            Some(signed.as_ref().is_some_and(verify))
        }
    };
    let document = DirectiveDocument::of(&directive, signed);
    if args.json {
        output::json(&ShowDocument { document, verified })?;
    } else {
        output::line(document.line())?;
        match (signed, verified) {
            (None, _) => output::line("not signed")?,
            (Some(signed), None) => {
                output::line(format_args!("signed with key {}", signed.key_id))?
            }
            (Some(_), Some(true)) => output::line("the signature is right")?,
            (Some(_), Some(false)) => output::line("the signature is NOT of this public key")?,
        }
    }
    Ok(match verified {
        Some(false) => ExitCode::from(output::NO),
        _ => ExitCode::SUCCESS,
    })
}

/// Returns the latest end that a directive with this start may have.
pub(super) fn latest_end(not_before_unix_ms: i64) -> i64 {
    not_before_unix_ms.saturating_add(directive::MAX_LIFE_MS)
}

/// Milliseconds since 1970, now.
pub(super) fn now_unix_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
