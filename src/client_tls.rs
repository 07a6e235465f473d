//! PEM files with which a client connects to a collector's TLS port, for `epwatch gate --certify` and `epwatch load`.

use std::path::Path;

use epwatch_fleet::ClientTls;

use crate::{
    input_file::{self, FilePurpose},
    output::WrongUse,
};

/// Reads the files of `--ca`, `--client-cert` and `--client-key`.
pub(crate) fn read(
    url: &str,
    ca: Option<&Path>,
    certificate: Option<&Path>,
    key: Option<&Path>,
) -> Result<ClientTls, WrongUse> {
    let read = |name, path: &Path, kind| {
        input_file::read(path, kind)
            .map_err(|error| WrongUse(format!("failed to read {name} {}: {error}", path.display())))
    };
    let ca = ca.map(|path| read("--ca", path, FilePurpose::Document));
    let identity = match certificate.zip(key) {
        None => None,
        Some(_) if !url.starts_with("https://") => {
            return Err(WrongUse(format!(
                "--client-cert is presented over TLS only: expected an address of https://, got {url}"
            )));
        }
        Some((certificate, key)) => Some((
            read("--client-cert", certificate, FilePurpose::Document)?,
            read("--client-key", key, FilePurpose::Secret)?,
        )),
    };
    Ok(ClientTls {
        ca: ca.transpose()?,
        identity,
    })
}
