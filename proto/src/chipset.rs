//! Chipsets: one code for the many spellings of phones, and a table of Qualcomm's.
//!
//! Three number spaces are never mixed: the text of `ro.soc.model` (`SM8650`), the kernel's `soc_id` (639),
//! and QNN's `soc_model` (57).

use std::fmt;

use serde::Serialize;

use crate::error::ParseError;
use crate::market_names;
use crate::message::{Checked, Kind, Text};
use crate::other_chipsets;
use crate::text::clipped;
use crate::wire::Value;

/// Longest chipset, in bytes.
pub const MAX_CHIPSET_BYTES: usize = 64;
/// Prefix of chipsets that have no Qualcomm code.
const OTHER: &str = "other:";

/// A normalised chipset: `SM8650` or the like for Qualcomm, `other:<raw>` for others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Chipset(String);

/// One Qualcomm chipset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soc {
    /// Code, for example `SM8650`.
    pub soc: &'static str,
    /// Trade name, for example `Snapdragon 8 Gen 3`.
    pub name: &'static str,
    /// Hexagon architecture version of its HTP, for example 75.
    pub hexagon_arch: u32,
    /// QNN's `soc_model` number.
    pub qnn_id: u32,
    /// Whether its HTP computes in FP16.
    pub fp16: Fp16,
}

/// Whether an HTP computes in FP16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp16 {
    /// Yes, for every op.
    Yes,
    /// Yes, but many ops fail when the session is created.
    ManyOpsFail,
    /// No: float nodes stay on the CPU.
    No,
}

const fn soc(
    soc: &'static str,
    name: &'static str,
    hexagon_arch: u32,
    qnn_id: u32,
    fp16: Fp16,
) -> Soc {
    Soc {
        soc,
        name,
        hexagon_arch,
        qnn_id,
        fp16,
    }
}

/// Known chipsets with an HTP. Code, Hexagon version and number are from the tables of onnxruntime-qnn 2.7.0
/// (QNN SDK 2.51). FP16 is the answer of its HTP emulator for each number. If QNN's own name ends in a letter
/// (`SXR2230P`), the code omits it, as [`Chipset`] does.
pub const SOCS: [Soc; 50] = [
    soc("SM8350", "Snapdragon 888", 68, 30, Fp16::ManyOpsFail),
    soc("SM8450", "Snapdragon 8 Gen 1", 69, 36, Fp16::Yes),
    soc("SM8475", "Snapdragon 8+ Gen 1", 69, 42, Fp16::Yes),
    soc("SM8550", "Snapdragon 8 Gen 2", 73, 43, Fp16::Yes),
    soc("SM8635", "Snapdragon 8s Gen 3", 73, 68, Fp16::No),
    soc("SM8735", "Snapdragon 8s Gen 4", 73, 85, Fp16::No),
    soc("SM8650", "Snapdragon 8 Gen 3", 75, 57, Fp16::Yes),
    soc("SM8750", "Snapdragon 8 Elite", 79, 69, Fp16::Yes),
    soc("SM8845", "Snapdragon 8 Gen 5", 81, 97, Fp16::Yes),
    soc("SM8850", "Snapdragon 8 Elite Gen 5", 81, 87, Fp16::Yes),
    soc("SM8975", "SM8975", 85, 103, Fp16::Yes),
    soc("SM8325", "SM8325", 68, 34, Fp16::No),
    soc("SM7315", "SM7315", 68, 38, Fp16::No),
    soc("SM7325", "Snapdragon 778G", 68, 35, Fp16::No),
    soc("SM7350", "Snapdragon 780G", 68, 32, Fp16::No),
    soc("SM7450", "Snapdragon 7 Gen 1", 69, 41, Fp16::Yes),
    soc("SM7475", "Snapdragon 7+ Gen 2", 69, 54, Fp16::No),
    soc("SM7435", "Snapdragon 7s Gen 2", 73, 61, Fp16::No),
    soc("SM7550", "Snapdragon 7 Gen 3", 73, 64, Fp16::No),
    soc("SM7635", "Snapdragon 7s Gen 3", 73, 73, Fp16::No),
    soc("SM7675", "Snapdragon 7+ Gen 3", 73, 70, Fp16::No),
    soc("SM7750", "Snapdragon 7 Gen 4", 73, 86, Fp16::No),
    soc("SM7775", "SM7775", 73, 91, Fp16::No),
    soc("SM6450", "Snapdragon 6 Gen 1", 73, 50, Fp16::No),
    soc("SM6475", "Snapdragon 6 Gen 3", 73, 76, Fp16::No),
    soc("SM6650", "Snapdragon 6 Gen 4", 73, 74, Fp16::No),
    soc("QCS6490", "QCS6490", 68, 93, Fp16::No),
    soc("QCM6690", "QCM6690", 73, 78, Fp16::No),
    soc("QCS8300", "QCS8300", 75, 82, Fp16::Yes),
    soc("QCM8538", "QCM8538", 73, 89, Fp16::Yes),
    soc("QCS8550", "QCS8550", 73, 66, Fp16::Yes),
    soc("QCS8625", "QCS8625", 75, 90, Fp16::Yes),
    soc("QCM8838", "QCM8838", 81, 99, Fp16::Yes),
    soc("QCS8845", "QCS8845", 81, 109, Fp16::Yes),
    soc("QCS9100", "QCS9100", 73, 77, Fp16::Yes),
    soc("SA8255", "SA8255P", 73, 52, Fp16::Yes),
    soc("SA8295", "SA8295P", 68, 39, Fp16::Yes),
    soc("SA8540", "SA8540P", 68, 62, Fp16::Yes),
    soc("SA8620", "SA8620P", 75, 67, Fp16::Yes),
    soc("SA8797", "SA8797P", 81, 72, Fp16::Yes),
    soc("SC8280XP", "Snapdragon 8cx Gen 3", 68, 37, Fp16::No),
    soc("SC8380XP", "Snapdragon X Elite", 73, 60, Fp16::Yes),
    soc("SC8440XP", "SC8440XP", 81, 94, Fp16::Yes),
    soc("SC8480XP", "Snapdragon X2 Elite", 81, 88, Fp16::Yes),
    soc("SXR1230", "SXR1230P", 73, 45, Fp16::No),
    soc("SXR2230", "Snapdragon XR2 Gen 2", 69, 53, Fp16::Yes),
    soc("SXR2330", "SXR2330P", 79, 75, Fp16::Yes),
    soc("SSG2115", "SSG2115P", 73, 46, Fp16::No),
    soc("SSG2125", "SSG2125P", 73, 58, Fp16::No),
    soc("SAR2230", "SAR2230P", 81, 95, Fp16::No),
];

/// The same silicon under another family's name. QNN's table has only one of the names.
const SAME_SILICON: [(&str, &str); 7] = [
    ("QCM6490", "QCS6490"),
    ("SC7280", "QCS6490"),
    ("QCM8550", "QCS8550"),
    ("QCS9075", "QCS9100"),
    ("SA8775", "SA8255"),
    ("QCS8275", "QCS8300"),
    ("QCS6690", "QCM6690"),
];

/// The names that onnxruntime-qnn 2.7.0 accepts in its option `soc_model`, in any case. It takes any other text
/// for its default chipset, with a warning at most, and accepts all numbers.
pub const QNN_SOC_MODEL_NAMES: [&str; 13] = [
    "SC8380XP", "SC8480XP", "SM7675", "SM8325", "SM8350", "SM8450", "SM8475", "SM8550", "SM8635",
    "SM8650", "SM8750", "SM8850", "SM8975",
];

/// Boards that have one chipset only. Others, for example taro and lahaina, have several.
const BOARDS: [(&str, &str); 4] = [
    ("kona", "SM8250"),
    ("kalama", "SM8550"),
    ("pineapple", "SM8650"),
    ("sun", "SM8750"),
];

/// Qualcomm's families; four digits follow.
const PREFIXES: [&str; 8] = ["QCS", "QCM", "SXR", "SSG", "SAR", "SM", "SA", "SC"];

/// Other vendors. Some of their codes look like Qualcomm's (Unisoc's `SC9863A`).
const OTHER_VENDORS: [&str; 12] = [
    "mediatek",
    "samsung",
    "exynos",
    "google",
    "unisoc",
    "spreadtrum",
    "hisilicon",
    "huawei",
    "apple",
    "rockchip",
    "intel",
    "nvidia",
];

impl Chipset {
    /// Returns the chipset of a device.
    ///
    /// Takes the platform's text (`QTI SM8750-AC`), the SoC's manufacturer and the board; each may be empty. A
    /// Qualcomm code in the text comes first, then a trade name (`Snapdragon 8 Gen 2`), then a board that has one
    /// chipset only. Otherwise the result is `other:` with the text, or `other:unknown`.
    pub fn normalise(raw: &str, soc_manufacturer: &str, board: &str) -> Self {
        if !names_other_vendor(soc_manufacturer) && !names_other_vendor(raw) {
            let by_board = || {
                BOARDS
                    .iter()
                    .find(|(b, _)| board.trim().eq_ignore_ascii_case(b))
            };
            if let Some(code) = qualcomm_code(raw) {
                return Self(code);
            }
            let names = SOCS.iter().map(|soc| (soc.name, soc.soc));
            if let Some(code) = market_names::code_of(raw, names) {
                return Self(code.to_owned());
            }
            if let Some((_, soc)) = by_board() {
                return Self((*soc).to_owned());
            }
        }
        let words: Vec<_> = raw.split_whitespace().collect();
        let text = match words.is_empty() {
            true => "unknown".to_owned(),
            false => words.join(" "),
        };
        Self(clipped(&format!("{OTHER}{text}"), MAX_CHIPSET_BYTES))
    }

    /// Returns the code, or `other:` and the raw text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is a Qualcomm code.
    pub fn is_qualcomm(&self) -> bool {
        !self.0.starts_with(OTHER)
    }

    /// Returns its entry in the table.
    pub fn soc(&self) -> Option<&'static Soc> {
        soc_by_name(&self.0)
    }
}

/// `other:unknown`.
impl Default for Chipset {
    fn default() -> Self {
        Self::normalise("", "", "")
    }
}

impl fmt::Display for Chipset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The sender's claim. The value derived from the device's other fields replaces it.
impl Kind for Chipset {
    type Wire = String;
    type Parsed = Self;

    fn parse(field: &str, value: String) -> Result<Self, ParseError> {
        Text::<MAX_CHIPSET_BYTES>::parse(field, value).map(Self)
    }

    fn encode(value: &Self) -> String {
        value.0.clone()
    }
}

impl Checked for Chipset {
    type Seen<'a> = &'a [u8];

    #[inline]
    fn see<'a>(seen: &mut &'a [u8], value: Value<'a>) -> Option<()> {
        Text::<MAX_CHIPSET_BYTES>::see(seen, value)
    }
}

/// Codes of other vendors' chipsets, before their digits. Their trade names are left out, because a chipset has a code too.
const OTHER_CODES: [&str; 6] = ["mt", "s5e", "gs", "ums", "rk", "kirin"];

/// Whether a normalised chipset is a vendor's code (Qualcomm's or another's), so that a different name means a
/// different chipset. Any other text may be a second name of the same chipset.
pub fn names_one_chipset(chipset: &str) -> bool {
    let Some(text) = chipset.strip_prefix(OTHER) else {
        return true;
    };
    let text = text.to_ascii_lowercase();
    OTHER_CODES.iter().any(|code| {
        let digits = text.strip_prefix(code).unwrap_or_default();
        digits.len() >= 3
            && digits.starts_with(|c: char| c.is_ascii_digit())
            && !digits.contains(' ')
    })
}

/// Finds a known chipset by its code, or by another name of the same silicon.
pub fn soc_by_name(soc: &str) -> Option<&'static Soc> {
    let same = SAME_SILICON.iter().find(|(other, _)| *other == soc);
    let soc = same.map_or(soc, |(_, known)| known);
    SOCS.iter().find(|s| s.soc == soc)
}

/// Returns the market name of a chipset, for example `Snapdragon 8 Gen 3` or `Dimensity 9300`.
pub fn market_name(chipset: &str) -> Option<&'static str> {
    match chipset.strip_prefix(OTHER) {
        Some(text) => other_chipsets::market_name(text),
        None => SOCS
            .iter()
            .find(|soc| soc.soc == chipset)
            .map(|soc| soc.name),
    }
}

/// Finds a known chipset by its QNN `soc_model` number.
pub fn soc_by_qnn_id(qnn_id: u32) -> Option<&'static Soc> {
    SOCS.iter().find(|s| s.qnn_id == qnn_id)
}

/// The known chipset that QNN's option `soc_model` names, by number or by code.
pub fn soc_by_soc_model(soc_model: &str) -> Option<&'static Soc> {
    match soc_model.trim().parse() {
        Ok(qnn_id) => soc_by_qnn_id(qnn_id),
        Err(_) => soc_by_name(&soc_model.trim().to_ascii_uppercase()),
    }
}

fn names_other_vendor(text: &str) -> bool {
    OTHER_VENDORS.iter().any(|vendor| {
        let mut places = text.as_bytes().windows(vendor.len());
        places.any(|place| place.eq_ignore_ascii_case(vendor.as_bytes()))
    })
}

/// Finds the first Qualcomm code in a text: a family and four digits. The rest (`SM8750-AC`, `SM8750P`) is cut,
/// unless the table has a longer name (`SC8380XP`).
fn qualcomm_code(raw: &str) -> Option<String> {
    let text = raw.to_ascii_uppercase();
    for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
        let Some(prefix) = PREFIXES.iter().find(|p| word.starts_with(**p)) else {
            continue;
        };
        let digits = word[prefix.len()..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
        if digits != 4 {
            continue;
        }
        let code = &word[..prefix.len() + 4];
        // These codes are codes of Unisoc, in a text without the manufacturer's name.
        if code.starts_with("SC9") || code.starts_with("SC77") {
            continue;
        }
        let known = SOCS.iter().find(|s| s.soc.starts_with(code));
        return Some(known.map_or(code, |s| s.soc).to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, manufacturer: &str, board: &str, expected: &str) {
        let chipset = Chipset::normalise(raw, manufacturer, board);
        assert_eq!(chipset.as_str(), expected);
        assert!(chipset.as_str().len() <= MAX_CHIPSET_BYTES);
        assert_eq!(chipset.is_qualcomm(), !expected.starts_with("other:"));
    }

    #[test]
    fn qualcomm_spellings_give_one_code() {
        check("SM8650", "QTI", "pineapple", "SM8650");
        check("QTI SM8650", "", "", "SM8650");
        check("QTI SM8750-AC", "QTI", "sun", "SM8750");
        check("SM8750P", "QTI", "", "SM8750");
        check("sm8550", "Qualcomm", "", "SM8550");
        check("Qualcomm Technologies, Inc QCS6490", "", "", "QCS6490");
        check("SXR2230P", "QTI", "", "SXR2230");
        check("SA8295P", "QTI", "", "SA8295");
        check("SC8380XP", "", "", "SC8380XP");
        check("SC8380", "", "", "SC8380XP");
    }

    #[test]
    fn trade_names_give_the_code() {
        check("Snapdragon 8 Gen 2", "Qualcomm", "", "SM8550");
        check("Snapdragon 8 Gen 2", "", "pineapple", "SM8550");
        check("Hexagon 780", "", "", "SM8350");
        check("Snapdragon 9 Gen 9", "", "", "other:Snapdragon 9 Gen 9");
        check(
            "Dimensity 8 Gen 2",
            "MediaTek",
            "",
            "other:Dimensity 8 Gen 2",
        );
    }

    #[test]
    fn only_codes_are_surely_other_chipsets() {
        for code in [
            "SM8550",
            "QCS6490",
            "other:MT6989",
            "other:s5e9945",
            "other:gs201",
        ] {
            assert!(names_one_chipset(code), "{code}");
        }
        let vague = [
            "other:unknown",
            "other:Snapdragon 9",
            "other:Exynos 2400",
            "other:SM-S918B",
        ];
        for text in vague {
            assert!(!names_one_chipset(text), "{text}");
        }
    }

    #[test]
    fn boards_count_only_where_they_name_one_chipset() {
        check("", "", "kona", "SM8250");
        check("unknown", "QTI", "kalama", "SM8550");
        check("", "", "Sun", "SM8750");
        check("", "", "taro", "other:unknown");
        check("", "", "lahaina", "other:unknown");
    }

    #[test]
    fn other_vendors_keep_their_text() {
        check("MT6989", "MediaTek", "", "other:MT6989");
        check("s5e9945", "Samsung", "", "other:s5e9945");
        check("SC9863A", "Spreadtrum", "", "other:SC9863A");
        check("SC9863A", "", "", "other:SC9863A");
        check("Tensor  G3", "Google", "sun", "other:Tensor G3");
        check("SM-S918B", "", "", "other:SM-S918B");
        check("SM86501", "", "", "other:SM86501");
        check("", "", "", "other:unknown");
        check(
            &"é".repeat(99),
            "",
            "",
            &format!("other:{}", "é".repeat(29)),
        );
        check("a\u{0}b", "", "", "other:a b");
    }

    #[test]
    fn table_is_found_by_name_and_by_qnn_id() {
        for soc in &SOCS {
            assert_eq!(soc_by_name(soc.soc), Some(soc));
            assert_eq!(soc_by_qnn_id(soc.qnn_id), Some(soc));
            let chipset = Chipset::normalise(soc.soc, "", "");
            assert_eq!(chipset.soc(), Some(soc));
        }
        assert_eq!(soc_by_qnn_id(57).map(|s| s.soc), Some("SM8650"));
        for named in [" 57", "SM8650", "sm8650 "] {
            assert_eq!(soc_by_soc_model(named).map(|s| s.soc), Some("SM8650"));
        }
        assert_eq!(soc_by_soc_model(""), None);
        for (other, known) in SAME_SILICON {
            assert_eq!(soc_by_name(other).map(|s| s.soc), Some(known));
            // The device's own text stays its chipset.
            assert_eq!(Chipset::normalise(other, "", "").as_str(), other);
        }
    }

    #[test]
    fn a_chipset_stands_in_the_table_once() {
        for (at, soc) in SOCS.iter().enumerate() {
            for other in &SOCS[at + 1..] {
                assert_ne!(soc.soc, other.soc);
                assert_ne!(soc.qnn_id, other.qnn_id, "{}", soc.soc);
            }
        }
    }
}
