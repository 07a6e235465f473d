//! Which chipset is meant, and what QNN calls it.

use std::str::FromStr;

use epwatch_proto::chipset::{SOCS, Soc, soc_by_name, soc_by_qnn_id};

/// A chipset as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocModel {
    /// As given.
    pub(crate) asked: String,
    /// QNN's number for it.
    pub(crate) qnn_id: u32,
}

impl SocModel {
    /// The chipset, where the number is one of those we know.
    pub(crate) fn soc(&self) -> Option<&'static Soc> {
        soc_by_qnn_id(self.qnn_id)
    }

    /// For example `SM8650`; `unknown` for a number that only QNN may know.
    pub(crate) fn chipset(&self) -> &str {
        let named = soc_by_name(&self.asked.to_ascii_uppercase());
        named.or(self.soc()).map_or("unknown", |soc| soc.soc)
    }
}

impl FromStr for SocModel {
    type Err = String;

    /// QNN takes a text it does not know for its default chipset, without an error: so names are
    /// looked up here.
    fn from_str(text: &str) -> Result<Self, String> {
        let asked = text.trim();
        let named = soc_by_name(&asked.to_ascii_uppercase()).map(|soc| soc.qnn_id);
        match named.or_else(|| asked.parse().ok()) {
            Some(qnn_id) => Ok(Self {
                asked: asked.to_owned(),
                qnn_id,
            }),
            None => {
                let names: Vec<&str> = SOCS.iter().map(|soc| soc.soc).collect();
                Err(format!(
                    "expected QNN's number of a chipset or one of {}",
                    names.join(", ")
                ))
            }
        }
    }
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
            ("55", 55, "unknown"),
        ] {
            let soc: SocModel = asked.parse().unwrap();
            assert_eq!((soc.qnn_id, soc.chipset()), (qnn_id, chipset), "{asked}");
            assert_eq!(soc.asked, asked.trim());
        }
    }

    #[test]
    fn a_name_that_qnn_would_take_for_its_default_is_refused() {
        for asked in ["SM9999", "", "-1", "snapdragon", "57.0"] {
            let error = asked.parse::<SocModel>().unwrap_err();
            assert!(error.contains("SM8650"), "{error}");
        }
    }
}
