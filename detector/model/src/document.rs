//! The document of an incident: its whole state as JSON, as the store keeps it in a column.
//!
//! Only documents of this version are read. Another version, a field that this version does not have, and a missing field
//! are errors. A reader that skipped a part would show or continue another incident.

use crate::incident::Incident;

/// The error for a document that cannot be read, because another version of epwatch made it.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the document of an incident, which another version of epwatch made")]
pub struct DocumentError(#[from] serde_json::Error);

/// Returns the document of an incident.
#[must_use]
pub fn write_document(incident: &Incident) -> String {
    serde_json::to_string(incident).expect("an incident has text keys only")
}

/// Reads a document.
///
/// # Errors
/// [`DocumentError`] if the document is not of this version.
pub fn read_document(document: &str) -> Result<Incident, DocumentError> {
    Ok(serde_json::from_str(document)?)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::document_version::DOCUMENT_VERSION;

    /// An incident with orders, as a detector stored it.
    const STORED: &str = include_str!("../fixtures/incident-1.json");

    /// Maps whose keys are names of channels or chipsets, not names of fields.
    const MAPS: [&str; 4] = ["delivered", "refused", "failing", "chipsets"];

    /// If this fails, a field has changed: raise `DOCUMENT_VERSION`, and store the new document as a fixture.
    #[test]
    fn a_stored_document_is_read_and_written_as_it_is() {
        let written = write_document(&read_document(STORED).unwrap());
        let [stored, written]: [Value; 2] =
            [STORED, &written].map(|text| serde_json::from_str(text).unwrap());
        assert_eq!(written, stored);
        assert_eq!(stored["version"], DOCUMENT_VERSION);
    }

    #[test]
    fn a_document_of_the_version_before_or_after_says_so() {
        for version in [0, 2, 300] {
            let other = STORED.replacen("\"version\":1", &format!("\"version\":{version}"), 1);
            let error = epwatch_proto::error_chain(&read_document(&other).unwrap_err());
            let says = format!("its version is {version}, expected 1");
            assert!(error.contains(&says), "{error}");
        }
        for text in ["", "{}", "[]", "null", "{\"version\":1}"] {
            assert!(read_document(text).is_err(), "{text}");
        }
    }

    /// Renames the n-th field; `None` if there are fewer.
    fn renamed(value: &mut Value, n: &mut usize) -> Option<String> {
        match value {
            Value::Array(items) => items.iter_mut().find_map(|item| renamed(item, n)),
            Value::Object(fields) => {
                for key in fields.keys().cloned().collect::<Vec<_>>() {
                    if *n == 0 {
                        let field = fields.remove(&key)?;
                        fields.insert(format!("{key}_of_another_version"), field);
                        return Some(key);
                    }
                    *n -= 1;
                    let field = fields.get_mut(&key)?;
                    let is_map = MAPS.contains(&key.as_str()) && field.is_object();
                    let inner = match is_map {
                        true => field
                            .as_object_mut()?
                            .values_mut()
                            .find_map(|v| renamed(v, n)),
                        false => renamed(field, n),
                    };
                    if inner.is_some() {
                        return inner;
                    }
                }
                None
            }
            _ => None,
        }
    }

    #[test]
    fn a_renamed_field_is_an_error_wherever_it_stands() {
        let mut n_fields = 0;
        loop {
            let mut document: Value = serde_json::from_str(STORED).unwrap();
            let Some(field) = renamed(&mut document, &mut { n_fields }) else {
                break;
            };
            assert!(read_document(&document.to_string()).is_err(), "{field}");
            n_fields += 1;
        }
        assert!(n_fields > 100, "{n_fields}");
    }
}
