//! `epwatch directive keygen`: makes the operator's key pair, in two files.

use std::{path::PathBuf, process::ExitCode};

use crate::signing_key::{self, KeyUse};

/// Makes an Ed25519 key pair for signing directives.
///
/// The private key goes into a file that only you can read; keep it off the collector. Give the public
/// key and its id to the app's SDK configuration. The public key is also written as PEM into OUT.pub,
/// for `epwatch verify` and other tools.
#[derive(Debug, clap::Args)]
pub(super) struct KeygenArgs {
    /// Where the private key goes; an existing file is never overwritten.
    #[arg(long, value_name = "FILE", default_value = "directive-key.pem")]
    out: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(super) fn keygen(args: &KeygenArgs) -> anyhow::Result<ExitCode> {
    let next_step = "Apps obey directives signed with it once their SDK is given key id and public key. For evidence of a pipeline: \
        `epwatch gate keygen`.";
    signing_key::create_and_print(&args.out, KeyUse::Directives, args.json, next_step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing_key::{PublicKey, SigningKey};

    #[test]
    fn a_made_key_is_private_and_signs() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("key.pem");
        let args = KeygenArgs {
            out: out.clone(),
            json: true,
        };
        keygen(&args).unwrap();
        let mode = std::fs::metadata(&out).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            keygen(&args).is_err(),
            "an existing key is never overwritten"
        );

        let key = SigningKey::read(&out).unwrap();
        let signature = key.sign(b"directive");
        let public = PublicKey::read(&dir.path().join("key.pem.pub")).unwrap();
        assert!(public.verifies(b"directive", &signature));
        assert!(!public.verifies(b"directivE", &signature));

        let evidence = dir.path().join("gate.pem");
        signing_key::create_pair(&evidence, KeyUse::Evidence).unwrap();
        let key = SigningKey::read(&evidence).unwrap();
        let public = PublicKey::read(&dir.path().join("gate.pem.pub")).unwrap();
        assert!(public.verifies(b"evidence", &key.sign(b"evidence")));
        assert_eq!(public.short_id(), key.key_id());
        let refused = SigningKey::read_for_directives(&evidence).err().unwrap();
        assert!(
            refused.to_string().contains("directive keygen"),
            "{refused}"
        );
        SigningKey::read_for_directives(&out).unwrap();
        let refused = SigningKey::read_for_evidence(&out).err().unwrap();
        assert!(
            refused
                .to_string()
                .contains("`epwatch gate keygen` makes one"),
            "{refused}"
        );
        SigningKey::read_for_evidence(&evidence).unwrap();
    }
}
