//! Trade names of chipsets, which some apps and hosts send instead of the platform's code. Called by
//! `Chipset::normalise`; holds no code of other vendors.
//!
//! Names of chipsets with an HTP are in `SOCS`. The others are from Qualcomm's product briefs, and were compared with public
//! device trees and kernel patches that give both names (`Snapdragon 778G (SM7325) / 778G+ (SM7325-AE) / 782G (SM7325-AF)`).

/// Further names, each with its code. The last ones are wrong, but people use them.
const FURTHER: [(&str, &str); 27] = [
    ("Snapdragon 888+", "SM8350"),
    ("Snapdragon 870", "SM8250"),
    ("Snapdragon 865+", "SM8250"),
    ("Snapdragon 865", "SM8250"),
    ("Snapdragon 860", "SM8150"),
    ("Snapdragon 855+", "SM8150"),
    ("Snapdragon 855", "SM8150"),
    ("Snapdragon 782G", "SM7325"),
    ("Snapdragon 778G+", "SM7325"),
    ("Snapdragon 768G", "SM7250"),
    ("Snapdragon 765G", "SM7250"),
    ("Snapdragon 765", "SM7250"),
    ("Snapdragon 750G", "SM7225"),
    ("Snapdragon 732G", "SM7150"),
    ("Snapdragon 730G", "SM7150"),
    ("Snapdragon 730", "SM7150"),
    ("Snapdragon 720G", "SM7125"),
    ("Snapdragon 695", "SM6375"),
    ("Snapdragon 690", "SM6350"),
    ("Snapdragon 665", "SM6125"),
    ("Snapdragon 480", "SM4350"),
    ("Snapdragon 4 Gen 1", "SM4375"),
    ("Snapdragon 4 Gen 2", "SM4450"),
    ("Snapdragon 7s Gen 4", "SM7635"),
    // Name of the 8 Elite in articles from before its announcement.
    ("Snapdragon 8 Gen 4", "SM8750"),
    // The NPU of the 888. Qualcomm's documents use its name for no other chipset.
    ("Hexagon 780", "SM8350"),
    ("Snapdragon 8 Gen 1+", "SM8475"),
];

/// Words that say nothing about which chipset it is.
const FILLERS: [&str; 18] = [
    "qualcomm",
    "snapdragon",
    "technologies",
    "inc",
    "qti",
    "tm",
    "r",
    "soc",
    "chipset",
    "processor",
    "mobile",
    "compute",
    "platform",
    "version",
    "for",
    "galaxy",
    "5g",
    "4g",
];

/// Returns the code of a trade name, by names and codes of chipsets with an HTP and by the further names here. `None`
/// if the text names none of them.
pub(crate) fn code_of(
    text: &str,
    with_htp: impl Iterator<Item = (&'static str, &'static str)>,
) -> Option<&'static str> {
    let name = compact(text);
    if name.is_empty() {
        return None;
    }
    let mut names = with_htp.chain(FURTHER);
    names.find_map(|(known, code)| (compact(known) == name).then_some(code))
}

/// Returns a name without fillers, blanks and case: `8+gen1`.
fn compact(text: &str) -> String {
    let lower = text.to_ascii_lowercase().replace("plus", "+");
    let words = lower.split(|c: char| !(c.is_ascii_alphanumeric() || c == '+'));
    let words = words.filter(|word| !FILLERS.contains(word));
    // `SD888`, `SDM 8 Gen 2`.
    let short = |word: &str| -> String {
        let rest = word.strip_prefix("sdm").or(word.strip_prefix("sd"));
        let rest = rest.filter(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '+'));
        rest.unwrap_or(word).to_owned()
    };
    words.map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chipset::{SOCS, Soc};

    fn names(soc: &'static Soc) -> (&'static str, &'static str) {
        (soc.name, soc.soc)
    }

    #[test]
    fn each_name_is_in_the_table_once() {
        let all = SOCS.iter().map(names).chain(FURTHER);
        let mut names: Vec<String> = all.map(|(name, _)| compact(name)).collect();
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn names_are_known_in_all_spellings() {
        for (text, code) in [
            ("Snapdragon 8 Gen 2", "SM8550"),
            (
                "Qualcomm® Snapdragon™ 8 Gen 2 Mobile Platform for Galaxy",
                "SM8550",
            ),
            ("snapdragon 8gen2", "SM8550"),
            ("Snapdragon 8+ Gen 1", "SM8475"),
            ("Snapdragon 8 Plus Gen 1", "SM8475"),
            ("SD888", "SM8350"),
            ("Snapdragon 888 Plus 5G", "SM8350"),
            ("Snapdragon 8 Elite", "SM8750"),
            ("8 Gen 4", "SM8750"),
            ("Hexagon 780", "SM8350"),
            ("Snapdragon 7s Gen 3", "SM7635"),
            ("Snapdragon 8 Elite Gen 5", "SM8850"),
        ] {
            let found = code_of(text, SOCS.iter().map(names));
            assert_eq!(found, Some(code), "{text}");
        }
        for text in [
            "",
            "Snapdragon",
            "Snapdragon 9 Gen 9",
            "8",
            "Hexagon",
            "kona",
        ] {
            let found = code_of(text, SOCS.iter().map(names));
            assert_eq!(found, None, "{text}");
        }
    }
}
