//! A phone on a cable, reached by the user's own `adb`.

use std::path::Path;

use tokio::process::Command;

use super::transport::{Machine, Transport, said};
use crate::output::{WrongUse, one_line};

/// Minimum battery level, in percent, for launches of a phone that is not charged.
const LOW_BATTERY: u32 = 20;

/// Texts of the adb client about a lost connection.
const LOST: [&str; 7] = [
    "error: closed",
    "device offline",
    "' not found",
    "no devices",
    "unauthorized",
    "failed to read copy response",
    "protocol fault",
];

/// A phone, by its serial.
#[derive(Debug)]
pub(super) struct Adb {
    serial: String,
    parent: String,
}

/// Returns the requested phones; without a serial, the only phone.
pub(super) async fn phones(serials: &[String], parent: &str) -> anyhow::Result<Vec<Adb>> {
    let mut list = Command::new("adb");
    list.arg("devices").stdin(std::process::Stdio::null());
    let list = said(list).await?;
    if !list.status.success() {
        anyhow::bail!("adb: {}", one_line(list.why()));
    }
    let there = listed(&list.stdout);
    let ready = chosen(&there, serials)?;
    let each = ready.into_iter().map(|serial| Adb {
        serial,
        parent: parent.to_owned(),
    });
    Ok(each.collect())
}

/// Parses serials and states from the output of `adb devices`.
fn listed(said: &str) -> Vec<(&str, &str)> {
    let lines = said.lines();
    lines.filter_map(|line| line.split_once('\t')).collect()
}

fn chosen(there: &[(&str, &str)], asked: &[String]) -> anyhow::Result<Vec<String>> {
    let all = || {
        let each = there
            .iter()
            .map(|(serial, state)| format!("{serial} ({state})"));
        each.collect::<Vec<_>>().join(", ")
    };
    let asked: Vec<&str> = match (asked, there) {
        ([], []) => anyhow::bail!(
            "adb has no device: connect a phone, and allow USB debugging in its developer options"
        ),
        ([], [(serial, _)]) => vec![serial],
        ([], _) => {
            let text = format!(
                "adb has several devices: give --adb the serials of {}",
                all()
            );
            return Err(WrongUse(text).into());
        }
        (asked, _) => asked.iter().map(String::as_str).collect(),
    };
    let mut chosen: Vec<String> = Vec::new();
    for serial in asked {
        let found = there.iter().find(|(known, _)| *known == serial);
        match found.map(|(_, state)| *state) {
            Some("device") => {}
            Some("unauthorized") => anyhow::bail!(
                "{serial} is unauthorized: unlock the phone, and allow this computer in the dialogue that it shows"
            ),
            Some("offline") => anyhow::bail!(
                "{serial} is offline: take the cable out and in, or run `adb reconnect offline`"
            ),
            Some(state) => anyhow::bail!(
                "{serial} is in the state {:?}, and a phone that can be measured in \"device\"",
                one_line(state)
            ),
            None if there.is_empty() => anyhow::bail!("adb has no device {serial}, and no other"),
            None => anyhow::bail!("adb has no device {serial}; it has {}", all()),
        }
        if !chosen.iter().any(|known| known == serial) {
            chosen.push(serial.to_owned());
        }
    }
    Ok(chosen)
}

impl Transport for Adb {
    fn name(&self) -> &str {
        &self.serial
    }

    fn parent(&self) -> &str {
        &self.parent
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("adb");
        command.args(["-s", &self.serial, "shell", line]);
        command
    }

    fn push(&self, from: &Path, to: &str) -> std::io::Result<Command> {
        let mut command = Command::new("adb");
        command.args(["-s", &self.serial, "push"]).arg(from).arg(to);
        command.stdin(std::process::Stdio::null());
        Ok(command)
    }

    fn by_hand(&self, line: &str) -> String {
        format!("adb -s {} shell {line}", self.serial)
    }

    fn greeting(&self) -> &'static str {
        "uname -sm; getprop ro.product.model; getprop ro.soc.model; getprop ro.build.version.release; \
         dumpsys battery; dumpsys power | grep mWakefulness=; dumpsys thermalservice | grep 'Thermal Status'; \
         ls /vendor/lib64/libcdsprpc.so /system/vendor/lib64/libcdsprpc.so 2>/dev/null; true"
    }

    fn machine(&self, said: &str) -> Machine {
        machine(said)
    }

    fn dsp_folders(&self) -> &'static str {
        "/vendor/dsp/cdsp;/vendor/lib/rfsa/adsp;/system/lib/rfsa/adsp;/dsp"
    }

    /// The adb client itself exits with 1, which the runner never does. It also exits with 1 if the phone refuses a
    /// file, but then prints a text.
    fn is_lost(&self, code: Option<i32>, said: &str) -> bool {
        // adb also exits with 0 when the cable was pulled out.
        code == Some(0)
            || code == Some(1)
                && (said.trim().is_empty() || LOST.iter().any(|text| said.contains(text)))
    }

    fn way_out(&self, said: &str) -> &'static str {
        let has = |text| said.contains(text);
        if has("No space left on device") {
            "; free space on the phone: the app's libraries, the model and the runner need room there"
        } else if has("unauthorized") {
            "; unlock the phone, and allow this computer in the dialogue that it shows"
        } else if has("Permission denied") {
            "; give a folder that the shell's user may write with --workdir"
        } else {
            ""
        }
    }
}

/// Reads the answer to the greeting.
fn machine(said: &str) -> Machine {
    let mut lines = said.lines().map(str::trim);
    let mut next = || lines.next().unwrap_or_default();
    let (kind, model, chipset, android) = (next(), next(), next(), next());
    let rest: Vec<&str> = lines.collect();
    let value = |key: &str| {
        let found = rest.iter().find_map(|line| line.strip_prefix(key));
        found.map(|value| value.trim_start_matches([':', '=']).trim())
    };
    let number = |key: &str| value(key).and_then(|value| value.parse::<u32>().ok());
    let is_charged = ["AC powered", "USB powered", "Wireless powered"]
        .iter()
        .any(|key| value(key) == Some("true"));
    let (level, tenths) = (number("level"), number("temperature"));
    let (screen, thermal) = (value("mWakefulness"), number("Thermal Status"));
    let mut told = vec![format!("{model}, chipset {chipset}, Android {android}")];
    told.extend(level.map(|level| format!("battery {level} %")));
    told.extend(tenths.map(|tenths| format!("at {:.1} C", f64::from(tenths) / 10.0)));
    told.extend(screen.map(|screen| format!("screen {screen}")));
    told.extend(thermal.map(|status| format!("thermal status {status}")));
    let mut warnings = Vec::new();
    if screen.is_some_and(|screen| screen != "Awake") {
        let text = "the screen is off, and Android lowers the clocks then; switch it on, and keep it on with `adb shell svc power stayon true`";
        warnings.push(text.to_owned());
    }
    if level.is_some_and(|level| level < LOW_BATTERY) && !is_charged {
        warnings
            .push("the battery is low, and Android may save power; charge the phone".to_owned());
    }
    Machine {
        kind: kind.to_owned(),
        told: one_line(&told.join(", ")),
        warnings,
        lacks_rpc_library: !rest.iter().any(|line| line.ends_with("/libcdsprpc.so")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Linux aarch64\nSM-S921B\nSM8650\n14\nCurrent Battery Service state:\n  AC powered: false\n  \
         USB powered: true\n  level: 83\n  scale: 100\n  temperature: 295\n  mWakefulness=Awake\nThermal Status: 1\n\
         /vendor/lib64/libcdsprpc.so\n";

    #[test]
    fn a_phone_says_what_it_is() {
        let found = machine(SAID);
        assert_eq!(found.kind, "Linux aarch64");
        assert_eq!(
            found.told,
            "SM-S921B, chipset SM8650, Android 14, battery 83 %, at 29.5 C, screen Awake, thermal status 1"
        );
        assert!(found.warnings.is_empty() && !found.lacks_rpc_library);
        let said = SAID
            .replace("Awake", "Asleep")
            .replace("level: 83", "level: 12")
            .replace("USB powered: true", "USB powered: false")
            .replace("libcdsprpc", "libother");
        let found = machine(&said);
        assert_eq!(found.warnings.len(), 2, "{found:?}");
        assert!(found.lacks_rpc_library);
    }

    #[test]
    fn one_phone_needs_no_serial_and_several_do() {
        let list = "List of devices attached\nA1\tdevice\nB2\tunauthorized\nC3\toffline\n\n";
        let there = listed(list);
        let asked = |serials: &[&str]| {
            let serials: Vec<String> = serials.iter().map(ToString::to_string).collect();
            chosen(&there, &serials).map_err(|error| error.to_string())
        };
        assert_eq!(asked(&["A1", "A1"]).unwrap(), ["A1"]);
        assert!(
            asked(&[])
                .unwrap_err()
                .contains("A1 (device), B2 (unauthorized)")
        );
        assert!(asked(&["B2"]).unwrap_err().contains("allow this computer"));
        assert!(
            asked(&["C3"])
                .unwrap_err()
                .contains("adb reconnect offline")
        );
        assert!(
            asked(&["D4"])
                .unwrap_err()
                .contains("no device D4; it has A1")
        );
        assert_eq!(chosen(&there[..1], &[]).unwrap(), ["A1"]);
    }
}
