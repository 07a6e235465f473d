//! Market names of chipsets that are not Qualcomm's, by the name that the system reports. Names of cohorts do not change
//! by it; the page shows the market name next to the chipset.
//!
//! `other_chipsets.txt` is the table, with the source of each group. An entry's words occur in the chipset's text in their
//! order. `?` is a digit.

const TABLE: &str = include_str!("other_chipsets.txt");

/// The entries of the table: words and market name.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" = "))
}

/// Returns the market name of a chipset by its text, for example `Dimensity 9300` of `MT6989`.
pub(crate) fn market_name(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let is_its = |(entry, _): &(&str, &str)| {
        let mut rest = words.iter();
        entry
            .split(' ')
            .all(|wanted| rest.any(|word| is_same(word, wanted)))
    };
    entries().find(is_its).map(|(_, name)| name)
}

fn is_same(word: &str, wanted: &str) -> bool {
    let fits = |(c, wanted): (u8, u8)| match wanted {
        b'?' => c.is_ascii_digit(),
        letter => c == letter,
    };
    word.len() == wanted.len() && word.bytes().zip(wanted.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chipset::{Chipset, market_name};

    #[test]
    fn each_entry_is_there_once_and_names_itself() {
        let mut all: Vec<_> = entries().map(|(entry, _)| entry).collect();
        let n_lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(all.len(), n_lines);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n_lines);
        for (entry, name) in entries() {
            let text = entry.replace('?', "5");
            assert_eq!(super::market_name(&text), Some(name), "{entry}");
            // None of them is taken for a chipset of Qualcomm.
            let chipset = Chipset::normalise(&text, "", "");
            assert!(!chipset.is_qualcomm(), "{entry}");
            assert_eq!(market_name(chipset.as_str()), Some(name), "{entry}");
        }
    }

    #[test]
    fn spellings_of_systems_and_apps_give_the_name() {
        for (chipset, name) in [
            ("other:MT6989", "Dimensity 9300"),
            ("other:MT6983Z/CZA", "Dimensity 9000"),
            ("other:MT6983W", "Dimensity 9000+"),
            ("other:MT6893Z/CZA", "Dimensity 1300"),
            ("other:S5E9945", "Exynos 2400"),
            ("other:Samsung s5e9955", "Exynos 2500"),
            ("other:GS201", "Google Tensor G2"),
            ("other:zumapro", "Google Tensor G4"),
            ("other:kirin9000s", "Kirin 9000S"),
            ("other:tegra234", "Jetson Orin"),
            ("other:nvidia,tegra194", "Jetson Xavier"),
            ("other:apple,t8122", "Apple M3"),
            ("other:T8140", "Apple A18 Pro"),
            ("other:T8140a", "Apple A18"),
            ("other:Intel(R) Core(TM) Ultra 7 155H", "Meteor Lake"),
            ("other:Intel(R) Core(TM) Ultra 7 258V", "Lunar Lake"),
            (
                "other:Intel(R) Core(TM) Ultra 9 285HX [OpenVINO]",
                "Arrow Lake",
            ),
            (
                "other:AMD Ryzen 7 8840U w/ Radeon 780M Graphics",
                "Hawk Point",
            ),
            ("other:AMD Ryzen AI 9 HX 370 w/ Radeon 890M", "Strix"),
            ("other:AMD Ryzen AI 9 HX PRO 375", "Strix"),
            ("other:AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "Strix Halo"),
            ("SM8650", "Snapdragon 8 Gen 3"),
        ] {
            assert_eq!(market_name(chipset), Some(name), "{chipset}");
        }
        for chipset in [
            "other:unknown",
            "other:",
            "SM9999",
            "other:MT69891",
            "other:Intel(R) Core(TM) 7 150U",
            "other:Intel(R) Core(TM) i7-1185G7",
            // Its Phoenix has no NPU.
            "other:AMD Ryzen 5 8540U w/ Radeon 740M Graphics",
        ] {
            assert_eq!(market_name(chipset), None, "{chipset}");
        }
    }
}
