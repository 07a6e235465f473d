//! The style sheets: of pages, and of a drawing that stands alone in another document.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The style of pages; its first rule has the tokens of the light scheme.
const PAGE: &str = include_str!("../../assets/style.css");

/// The classes of drawings.
const PLOT: &str = include_str!("../../assets/plot.css");

/// Font and background of a drawing that stands alone.
const ALONE: &str =
    "svg{font-family:Inter,ui-sans-serif,system-ui,sans-serif}.paper{fill:var(--paper)}";

/// The style sheet of pages.
pub(crate) static SHEET: LazyLock<String> = LazyLock::new(|| format!("{PAGE}\n{PLOT}"));

/// The style of a drawing that stands alone, in the light scheme. CSS variables are replaced by their values, because
/// converters do not support variables.
pub(crate) static OF_DRAWING: LazyLock<String> = LazyLock::new(|| {
    let (tokens, _) = PAGE.split_once('}').unwrap_or_default();
    let tokens = tokens.split([';', '{']);
    let tokens = tokens.filter_map(|token| token.trim().split_once(':'));
    let tokens = tokens.filter(|(name, _)| name.starts_with("--"));
    let style = format!("{ALONE}{}", PLOT.replace('\n', ""));
    tokens.fold(style, |style, (name, value)| {
        style.replace(&format!("var({name})"), value)
    })
});

/// The policy of an answer that is a drawing: it may use its own style and nothing else.
pub(crate) static DRAWING_POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = STANDARD.encode(Sha256::digest(OF_DRAWING.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'"
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_alone_needs_no_variables() {
        assert!(OF_DRAWING.contains(".npu{fill:#0b63a5}"), "{}", *OF_DRAWING);
        assert!(!OF_DRAWING.contains("var("), "{}", *OF_DRAWING);
        assert!(SHEET.contains(".npu{"));
    }
}
