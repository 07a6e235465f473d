//! Chipsets of the command line, with QNN's number for each.

use std::{collections::BTreeSet, str::FromStr};

use epwatch_proto::{
    Chipset,
    chipset::{Fp16, SOCS, Soc, soc_by_qnn_id},
};

/// At most this many letters differ between a name and the chipset that was meant.
const MOST_LETTERS: usize = 2;

/// A chipset of `--soc`, or the place of an EP without chipsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocModel {
    /// The chipset's text on the command line, or the place's name.
    pub(crate) asked: String,
    /// QNN's number for the chipset; `None` for a place without chipsets.
    pub(crate) qnn_id: Option<u32>,
}

impl SocModel {
    /// Returns the chipset, if its number is in `proto`'s table.
    pub(crate) fn soc(&self) -> Option<&'static Soc> {
        soc_by_qnn_id(self.qnn_id?)
    }

    /// Returns the chipset's name, for example `SM8650`; `unknown` for a number that is not in `proto`'s table.
    pub(crate) fn chipset(&self) -> String {
        if self.qnn_id.is_none() {
            return self.asked.clone();
        }
        match named(&self.asked) {
            Some((chipset, _)) => chipset.as_str().to_owned(),
            None => self.soc().map_or("unknown", |soc| soc.soc).to_owned(),
        }
    }
}

impl FromStr for SocModel {
    type Err = String;

    /// Looks names up here, since QNN silently uses its default chipset for an unknown text. Numbers go to QNN as they
    /// are. A market name (`Snapdragon 8 Gen 3`) is accepted if only one chipset has it.
    fn from_str(text: &str) -> Result<Self, String> {
        let asked = text.trim();
        let qnn_id = match asked.parse::<u32>() {
            Ok(number) => Some(number),
            Err(_) => named(asked).map(|(_, soc)| soc.qnn_id),
        };
        if qnn_id.is_some() {
            return Ok(Self {
                asked: asked.to_owned(),
                qnn_id,
            });
        }
        let of_market: Vec<&Soc> = SOCS
            .iter()
            .filter(|soc| soc.name.eq_ignore_ascii_case(asked))
            .collect();
        match of_market.as_slice() {
            [soc] => Ok(Self {
                asked: soc.soc.to_owned(),
                qnn_id: Some(soc.qnn_id),
            }),
            [] => Err(unknown(asked)),
            several => Err(format!(
                "several chipsets have this name; expected one of {}",
                names(several.iter().copied())
            )),
        }
    }
}

/// Returns the text of valid names for an unknown name: the nearest ones, or all.
fn unknown(asked: &str) -> String {
    let upper = asked.to_ascii_uppercase();
    let away = |soc: &&Soc| strsim::damerau_levenshtein(&upper, soc.soc);
    let least = SOCS.iter().map(|soc| away(&soc)).min();
    let near = SOCS
        .iter()
        .filter(|soc| away(soc) <= MOST_LETTERS && Some(away(soc)) == least);
    let near = names(near);
    match near.is_empty() {
        false => format!("no chipset has this name; did you mean {near}?"),
        true => format!(
            "expected QNN's number of a chipset or one of {}",
            names(SOCS.iter())
        ),
    }
}

fn names<'a>(socs: impl IntoIterator<Item = &'a Soc>) -> String {
    let names: Vec<&str> = socs.into_iter().map(|soc| soc.soc).collect();
    names.join(", ")
}

/// One chipset, or all chipsets of the table with a common property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocTier {
    One(SocModel),
    All,
    /// The chipsets whose NPU computes in FP16, or does not.
    Fp16(bool),
    /// The chipsets whose NPU has this Hexagon version.
    Hexagon(u32),
}

impl SocTier {
    /// Returns the chipsets, each once, in the order of the command line, then of the table.
    pub(crate) fn chipsets(tiers: &[Self]) -> Vec<SocModel> {
        let mut found: Vec<SocModel> = Vec::new();
        let mut add = |soc: SocModel| {
            if found.iter().all(|known| known.qnn_id != soc.qnn_id) {
                found.push(soc);
            }
        };
        for tier in tiers {
            let is_of = |soc: &&Soc| match tier {
                Self::One(_) => false,
                Self::All => true,
                Self::Fp16(has) => (soc.fp16 == Fp16::Yes) == *has,
                Self::Hexagon(version) => soc.hexagon_arch == *version,
            };
            if let Self::One(soc) = tier {
                add(soc.clone());
            }
            for soc in SOCS.iter().filter(is_of) {
                add(SocModel {
                    asked: soc.soc.to_owned(),
                    qnn_id: Some(soc.qnn_id),
                });
            }
        }
        found
    }
}

impl FromStr for SocTier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hexagon = |text: &str| text.strip_prefix(['v', 'V'])?.parse::<u32>().ok();
        Ok(match text.trim().to_ascii_lowercase().as_str() {
            "all" => Self::All,
            "fp16" => Self::Fp16(true),
            "no-fp16" => Self::Fp16(false),
            tier => match hexagon(tier) {
                Some(version) if SOCS.iter().any(|soc| soc.hexagon_arch == version) => {
                    Self::Hexagon(version)
                }
                Some(_) => {
                    let versions: BTreeSet<u32> = SOCS.iter().map(|soc| soc.hexagon_arch).collect();
                    let versions: Vec<String> = versions.iter().map(|v| format!("v{v}")).collect();
                    return Err(format!("expected one of {}", versions.join(", ")));
                }
                None => Self::One(text.parse().map_err(|expected| {
                    format!("{expected} (or a tier: all, fp16, no-fp16, v73 and the like)")
                })?),
            },
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
            let found = (soc.qnn_id, soc.chipset());
            assert_eq!(found, (Some(qnn_id), chipset.to_owned()), "{asked}");
            assert_eq!(soc.asked, asked.trim());
        }
    }

    #[test]
    fn a_tier_is_its_chipsets_each_once() {
        let names = |text: &str| {
            let tiers: Vec<SocTier> = text.split(',').map(|one| one.parse().unwrap()).collect();
            let chipsets = SocTier::chipsets(&tiers).into_iter();
            chipsets.map(|soc| soc.chipset()).collect::<Vec<_>>()
        };
        assert_eq!(names("all").len(), SOCS.len());
        assert_eq!(names("fp16").len() + names("no-fp16").len(), SOCS.len());
        assert!(names("NO-FP16").contains(&"SM8635".to_owned()));
        // On SM8350, float ops may fail when the session is made.
        assert!(names("no-fp16").contains(&"SM8350".to_owned()));
        assert_eq!(names("SM8650,68,sm8650,57"), ["SM8650", "SM8635"]);
        let v79 = names("v79");
        assert_eq!(v79, ["SM8750", "SXR2330"]);
        assert_eq!(names("SXR2330,v79"), ["SXR2330", "SM8750"]);
        for text in ["v12", "fp32", "every", ""] {
            let error = text.parse::<SocTier>().unwrap_err();
            assert!(error.contains("v73"), "{error}");
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
            assert!(!error.contains("expected expected"), "{error}");
            assert!(error.contains("SM"), "{error}");
        }
        let error = "SM8560".parse::<SocModel>().unwrap_err();
        assert!(
            error.contains("did you mean") && error.contains("SM8650"),
            "{error}"
        );
        let soc: SocModel = "snapdragon 8 Gen 3".parse().unwrap();
        assert_eq!((&*soc.asked, soc.qnn_id), ("SM8650", Some(57)));
    }
}
