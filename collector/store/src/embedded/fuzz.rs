//! Untrusted input to the engine's HTTP front, as functions of bytes. The fuzz targets of `tests/fuzz` call them, and a
//! test here runs them over the seeds. None may panic.

use hyper::{HeaderMap, header};

use super::protocol::frame::{self, FrameDecoder};
use super::protocol::reader::{self, ReaderAccess};
use super::protocol::request::{Parameters, form_boundary};
use super::protocol::statement::{self, Kind};
use crate::native::decode::{Block, BlockDecoder};
use crate::native::reframe::Reframer;

/// A request to the engine: the URL's query, a content type, a header with credentials, and the body. Line feeds
/// separate them.
///
/// # Panics
/// Panics if a request is read differently than it was checked, which the fuzzer tries to find.
pub fn request(bytes: &[u8]) {
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let (url, content_type, credentials) = (text(), text(), text());
    let body = text();
    let Ok(mut parameters) = Parameters::from_url(&url) else {
        return;
    };
    check_password(&credentials, &parameters);
    match form_boundary(&content_type) {
        Some(boundary) => {
            if parameters.put_form(&body, boundary).is_err() {
                return;
            }
        }
        None => parameters.query.push_str(&body),
    }
    let Ok(kind) = statement::read(&parameters.query) else {
        return;
    };
    let _ = statement::output_format(&parameters.query);
    let may_read = reader::check_statement(&parameters.query, &kind).is_ok();
    if let Kind::InsertRows { data_at, .. } = kind {
        assert!(!may_read, "a reader never writes: {:?}", parameters.query);
        let rows = parameters.query.split_off(data_at);
        drop(rows);
    }
    if may_read && reader::restrict(&mut parameters.settings, 1 << 30).is_ok() {
        let last = parameters.settings.last();
        assert_eq!(
            last.map(|(name, value)| (name.as_str(), value.as_str())),
            Some(("readonly", "1"))
        );
    }
}

fn check_password(credentials: &str, parameters: &Parameters) {
    const PASSWORD: &str = "a long password";
    let access = ReaderAccess::new(([127, 0, 0, 1], 0).into(), PASSWORD).expect("long enough");
    let mut headers = HeaderMap::new();
    if let Ok(value) = header::HeaderValue::from_str(credentials) {
        headers.insert(header::AUTHORIZATION, value.clone());
        headers.insert(header::HOST, value);
    }
    let _ = ReaderAccess::check_host(&headers);
    let _ = access.check_password(&headers, parameters);
}

/// Compressed rows in pieces, whose length is the first byte. They are read unchanged, and as a frame with a correct
/// checksum, which no fuzzer guesses.
pub fn compressed_rows(bytes: &[u8]) {
    let [piece, rest @ ..] = bytes else {
        return;
    };
    decompress(rest, usize::from(*piece) + 1);
    if let [method, raw @ ..] = rest
        && let Some((raw, payload)) = raw.split_first_chunk::<3>()
    {
        // The size is limited to 16 MiB, because more only costs the fuzzer time.
        let raw = u32::from_le_bytes([raw[0], raw[1], raw[2], 0]);
        decompress(
            &frame::sealed(*method, raw, payload),
            usize::from(*piece) + 1,
        );
    }
}

fn decompress(rows: &[u8], piece: usize) {
    let mut frames = FrameDecoder::default();
    for piece in rows.chunks(piece) {
        frames.push(piece);
        loop {
            match frames.next_frame() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    let _ = frames.finish();
}

/// Native blocks. Reframing and decoding must give the same result as a whole and in pieces.
///
/// # Panics
/// Panics if the results differ, which the fuzzer tries to find.
pub fn native_blocks(bytes: &[u8]) {
    let [revision, piece, blocks @ ..] = bytes else {
        return;
    };
    let revision = 54_400 + u64::from(*revision) * 8;
    let piece = usize::from(*piece) + 1;
    let whole = blocks.len().max(1);
    assert_eq!(
        reframed(blocks, piece, revision),
        reframed(blocks, whole, revision)
    );
    assert_eq!(decoded(blocks, piece), decoded(blocks, whole));
}

/// Returns `None` if the blocks are refused.
fn reframed(blocks: &[u8], piece: usize, revision: u64) -> Option<Vec<u8>> {
    let mut reframer = Reframer::new(revision)?;
    let mut all = Vec::new();
    for piece in blocks.chunks(piece) {
        all.extend(reframer.push(piece).ok()?);
    }
    reframer.finish().ok()?;
    Some(all)
}

/// Returns `None` if the blocks are refused.
fn decoded(blocks: &[u8], piece: usize) -> Option<Vec<Block>> {
    let mut decoder = BlockDecoder::default();
    let mut all = Vec::new();
    for piece in blocks.chunks(piece) {
        decoder.push(piece);
        while let Some(block) = decoder.next().ok()? {
            all.push(block);
        }
    }
    decoder.finish().ok()?;
    Some(all)
}

#[cfg(test)]
#[path = "../../../../tests/fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::check;

    #[test]
    fn requests_of_the_seeds_are_taken_or_refused() {
        check("engine_request", 2_000, super::request);
    }

    #[test]
    fn compressed_rows_of_the_seeds_are_taken_or_refused() {
        check("engine_compressed_rows", 2_000, super::compressed_rows);
    }

    #[test]
    fn native_blocks_of_the_seeds_are_the_same_in_pieces() {
        check("engine_native_blocks", 2_000, super::native_blocks);
    }
}
