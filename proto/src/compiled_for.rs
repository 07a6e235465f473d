//! QNN's description of a compiled graph (EPContext), from the metadata of the graph's file.

use crate::chipset::{Soc, soc_by_qnn_id};

/// Chipset and version of QNN that a graph was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QnnCompiledFor<'a> {
    /// QNN's number of the chipset, if the text has one.
    pub qnn_id: Option<u32>,
    /// Version of the QNN SDK, for example `2.51.0`.
    pub sdk: Option<&'a str>,
}

impl<'a> QnnCompiledFor<'a> {
    /// Reads the text under `ep_compatibility_info.QNNExecutionProvider`. The plugin 2.7.0 writes
    /// `v2:6:2.51.0:5.51.0:0:57:0:0`: format, back end, versions of SDK and API, a flag, chipset, two flags. The plugin
    /// 2.3.0 writes `6:2.47.0:5.47.0:0.0.0:68:0`, whose `68` is the Hexagon version of the machine that compiled. The
    /// emulator writes 68 for every chipset, so this number is not read.
    #[must_use]
    pub fn of_text(text: &'a str) -> Self {
        let mut fields = [""; 8];
        let n = text.split(':').count();
        for (field, found) in fields.iter_mut().zip(text.split(':')) {
            *field = found;
        }
        let (soc, sdk) = match (fields, n) {
            (["v2", _, sdk, _, _, soc, ..], 6..) => (soc.parse().ok(), sdk),
            ([backend, sdk, ..], 6) if is_number(backend) => (None, sdk),
            _ => return Self::default(),
        };
        let is_version = sdk.contains('.') && sdk.split('.').all(is_number);
        Self {
            qnn_id: soc.filter(|soc| *soc > 0),
            sdk: is_version.then_some(sdk),
        }
    }

    /// Whether the text names a chipset other than `here`. A text without a chipset, and a number that is not in the
    /// table, name none.
    #[must_use]
    pub fn is_for_other_than(self, here: &Soc) -> bool {
        let known = self.qnn_id.and_then(soc_by_qnn_id);
        known.is_some_and(|made_for| made_for.qnn_id != here.qnn_id)
    }

    /// Whether a QNN newer than `here` compiled the graph; the older QNN then refuses it.
    #[must_use]
    pub fn is_newer_than(self, here: &str) -> bool {
        let made_by = self.sdk.and_then(minor_version);
        let here = minor_version(here);
        made_by
            .zip(here)
            .is_some_and(|(made_by, here)| made_by > here)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Major and minor number.
fn minor_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_start_matches('v').split('.');
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chipset::soc_by_name;

    #[test]
    fn both_forms_are_read_and_others_say_nothing() {
        let read = |text| {
            let found = QnnCompiledFor::of_text(text);
            (found.qnn_id, found.sdk)
        };
        assert_eq!(
            read("v2:6:2.51.0:5.51.0:0:57:0:0"),
            (Some(57), Some("2.51.0"))
        );
        assert_eq!(read("6:2.47.0:5.47.0:0.0.0:68:0"), (None, Some("2.47.0")));
        assert_eq!(read("v2:6:2.51.0:5.51.0:0:0:0:0"), (None, Some("2.51.0")));
        for other in [
            "",
            ":",
            "v2",
            "v2:6:2.51.0:5.51.0:0",
            "{}",
            "v3:6:2.51.0:5.51.0:0:57:0:0",
        ] {
            assert_eq!(read(other), (None, None), "{other}");
        }
    }

    #[test]
    fn another_chipset_and_a_newer_qnn_are_told() {
        let made = QnnCompiledFor::of_text("v2:6:2.51.0:5.51.0:0:57:0:0");
        let is_for_other = |soc| made.is_for_other_than(soc_by_name(soc).unwrap());
        assert!(is_for_other("SM8635") && !is_for_other("SM8650"));
        assert!(made.is_newer_than("2.47.0") && made.is_newer_than("v2.9.1.250101"));
        for same in ["2.51.0", "2.51.7", "2.60.0", "3.0", "", "unknown"] {
            assert!(!made.is_newer_than(same), "{same}");
        }
        let unknown = QnnCompiledFor::of_text("v2:6:2.51.0:5.51.0:0:4000:0:0");
        assert!(!unknown.is_for_other_than(soc_by_name("SM8650").unwrap()));
    }
}
