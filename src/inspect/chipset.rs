//! Chipsets of the command line, with QNN's number for each.

use std::str::FromStr;

use epwatch_proto::{
    Chipset,
    chipset::{SOCS, Soc, soc_by_qnn_id},
};

/// A chipset of `--soc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocModel {
    /// The text on the command line.
    pub(crate) asked: String,
    /// QNN's number for it.
    pub(crate) qnn_id: u32,
}

impl SocModel {
    /// Returns the chipset, if its number is in `proto`'s table.
    pub(crate) fn soc(&self) -> Option<&'static Soc> {
        soc_by_qnn_id(self.qnn_id)
    }

    /// For example `SM8650`; `unknown` for a number that is not in `proto`'s table.
    pub(crate) fn chipset(&self) -> String {
        match named(&self.asked) {
            Some((chipset, _)) => chipset.as_str().to_owned(),
            None => self.soc().map_or("unknown", |soc| soc.soc).to_owned(),
        }
    }
}

impl FromStr for SocModel {
    type Err = String;

    /// Looks names up here, since QNN silently uses its default chipset for an unknown text. Numbers go to QNN
    /// as they are.
    fn from_str(text: &str) -> Result<Self, String> {
        let asked = text.trim();
        let qnn_id = match asked.parse::<u32>() {
            Ok(number) => Some(number),
            Err(_) => named(asked).map(|(_, soc)| soc.qnn_id),
        };
        let Some(qnn_id) = qnn_id else {
            let names: Vec<&str> = SOCS.iter().map(|soc| soc.soc).collect();
            return Err(format!(
                "expected QNN's number of a chipset or one of {}",
                names.join(", ")
            ));
        };
        Ok(Self {
            asked: asked.to_owned(),
            qnn_id,
        })
    }
}

/// Returns the one chipset of the table with this name. Letters after the digits (`SXR2230P`) may be left out.
fn named(asked: &str) -> Option<(Chipset, &'static Soc)> {
    let chipset = Chipset::normalise(asked, "", "");
    let soc = chipset.soc()?;
    let is_one_word = asked.bytes().all(|b| b.is_ascii_alphanumeric());
    is_one_word.then_some((chipset, soc))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_mean_the_same_chipset() {
        for (asked, qnn_id, chipset) in [
            ("SM8650", 57, "SM8650"),
            ("sm8635", 68, "SM8635"),
            ("57", 57, "SM8650"),
            (" 30 ", 30, "SM8350"),
            ("QCS6490", 93, "QCS6490"),
            ("QCM6490", 93, "QCM6490"),
            ("SA8775P", 52, "SA8775"),
            ("sxr2230p", 53, "SXR2230"),
            ("SC8380XP", 60, "SC8380XP"),
            ("52", 52, "SA8255"),
            ("9999", 9999, "unknown"),
        ] {
            let soc: SocModel = asked.parse().unwrap();
            assert_eq!((soc.qnn_id, &*soc.chipset()), (qnn_id, chipset), "{asked}");
            assert_eq!(soc.asked, asked.trim());
        }
    }

    #[test]
    fn a_name_that_qnn_would_take_for_its_default_is_refused() {
        for asked in [
            "SM9999",
            "",
            "-1",
            "snapdragon",
            "57.0",
            "SM8650 or so",
            "SM86501",
            "99999999999",
        ] {
            let error = asked.parse::<SocModel>().unwrap_err();
            assert!(error.contains("SM8650"), "{error}");
        }
    }
}
