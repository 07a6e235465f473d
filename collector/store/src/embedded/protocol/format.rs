//! Output formats: which can be fetched in chunks, and what each chunk repeats.
//!
//! The engine writes every chunk as a separate document. Chunks without a header are joined. A header is cut from all
//! chunks but the first. In other formats (JSON, Parquet, Pretty) the result is made as a whole.

use crate::native::Cursor;

/// How chunks of a format join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streaming {
    /// The chunks follow each other.
    Plain,
    /// Each chunk begins with this many header lines.
    HeaderLines(usize),
    /// Each chunk begins with the number of columns as a varint, then their names and types.
    NamesAndTypes,
}

impl Streaming {
    /// Returns `None` if a result in the format must be made as a whole.
    pub(crate) fn of(format: &str) -> Option<Streaming> {
        Some(match format {
            "TabSeparated" | "TSV" | "TabSeparatedRaw" | "TSVRaw" | "CSV" | "JSONEachRow"
            | "JSONLines" | "NDJSON" | "JSONCompactEachRow" | "RowBinary" | "Native" => {
                Streaming::Plain
            }
            "TabSeparatedWithNames"
            | "TSVWithNames"
            | "CSVWithNames"
            | "JSONCompactEachRowWithNames" => Streaming::HeaderLines(1),
            "TabSeparatedWithNamesAndTypes"
            | "TSVWithNamesAndTypes"
            | "CSVWithNamesAndTypes"
            | "JSONCompactEachRowWithNamesAndTypes" => Streaming::HeaderLines(2),
            "RowBinaryWithNamesAndTypes" => Streaming::NamesAndTypes,
            _ => return None,
        })
    }
}

/// Returns whether a result without rows may hold bytes. With `Native` that depends on the engine.
pub(crate) fn has_header(format: &str) -> bool {
    format == "Native" || Streaming::of(format) != Some(Streaming::Plain)
}

/// Returns the length of a chunk's header in bytes.
///
/// # Errors
/// The chunk ends inside its header; the text has the engine's form.
pub(crate) fn header_length(streaming: Streaming, chunk: &[u8]) -> Result<usize, String> {
    let length = match streaming {
        Streaming::Plain => Some(0),
        Streaming::HeaderLines(lines) => chunk
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(lines - 1)
            .map(|(at, _)| at + 1),
        Streaming::NamesAndTypes => names_and_types_length(chunk),
    };
    length.ok_or_else(|| {
        "Code: 1002. DB::Exception: chunk ends inside its header. (UNKNOWN_EXCEPTION)".to_owned()
    })
}

fn names_and_types_length(chunk: &[u8]) -> Option<usize> {
    let mut cursor = Cursor::new(chunk);
    let n_columns = cursor.varint().ok()?;
    for _ in 0..n_columns.checked_mul(2)? {
        cursor.text().ok()?;
    }
    Some(cursor.position())
}

/// Returns the Content-Type ClickHouse gives a format.
pub(crate) fn content_type(format: &str) -> &'static str {
    if format.starts_with("JSON") {
        "application/json; charset=UTF-8"
    } else if format.starts_with("TabSeparated") || format.starts_with("TSV") {
        "text/tab-separated-values; charset=UTF-8"
    } else if format.starts_with("CSV") {
        "text/csv; charset=UTF-8; header=absent"
    } else if format.starts_with("Pretty") || format == "Vertical" {
        "text/plain; charset=UTF-8"
    } else {
        "application/octet-stream"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_measured() {
        let rowbinary = [
            &[2, 1][..],
            b"a",
            &[2],
            b"bb",
            &[6],
            b"UInt64",
            &[6],
            b"String",
            b"rows",
        ];
        let rowbinary = rowbinary.concat();
        let length = header_length(Streaming::NamesAndTypes, &rowbinary);
        assert_eq!(length, Ok(rowbinary.len() - 4));
        assert_eq!(
            header_length(Streaming::HeaderLines(2), b"a\tb\nU\tS\n1\t2\n"),
            Ok(8)
        );
        assert_eq!(header_length(Streaming::Plain, b""), Ok(0));
    }

    #[test]
    fn a_torn_header_is_refused() {
        for chunk in [&[2_u8, 200][..], &[255; 12], &[1, 5, b'a']] {
            assert!(
                header_length(Streaming::NamesAndTypes, chunk).is_err(),
                "{chunk:?}"
            );
        }
        assert!(header_length(Streaming::HeaderLines(1), b"no line end").is_err());
    }

    #[test]
    fn a_result_without_rows_is_empty_where_a_format_has_rows_only() {
        assert!(!has_header("RowBinary") && !has_header("JSONEachRow"));
        for format in [
            "RowBinaryWithNamesAndTypes",
            "TSVWithNames",
            "JSON",
            "Native",
        ] {
            assert!(has_header(format), "{format}");
        }
    }

    #[test]
    fn documents_are_not_streamed() {
        for format in ["JSON", "Parquet", "Arrow", "PrettyCompact"] {
            assert_eq!(Streaming::of(format), None);
        }
    }
}
