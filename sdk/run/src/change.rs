//! How a refusal names what is not as it was.

/// Returns the change of one setting, in words.
pub(crate) fn changed(what: &str, kept: Option<&String>, now: Option<&String>) -> String {
    let shown = |of: Option<&String>| of.map_or("none", String::as_str).to_owned();
    format!("{what}: {} before, {} now", shown(kept), shown(now))
}
