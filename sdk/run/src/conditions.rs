//! The device: its names, and its state before and after a launch, which is heat, battery, and a fixed piece of work on the CPU.

use std::{
    fs,
    hint::black_box,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use epwatch_gate::run_document::MeasuredOn;
use epwatch_proto::Thermal;
use epwatch_sdk::desk;
use rustix::time::{ClockId, clock_gettime};

use crate::args::Command as RunCommand;

/// Loop iterations of the piece of work, which takes some 5 ms on a phone.
const TURNS: u64 = 2_000_000;
/// How often the piece of work is repeated. The shortest time counts, because interrupts only make it longer.
const PROBES: usize = 5;
/// If two pieces of work take equally long within this share, the device is steady.
const STEADY: f64 = 0.03;
/// Pause between two pieces of work.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns the CPU time of a fixed piece of work, in microseconds. A lower clock makes it longer; other programs do
/// not, and they slow the launches of both models alike.
pub(crate) fn probe_us() -> f64 {
    let once = || {
        let began = cpu_us();
        let mut x = black_box(0x9e37_79b9_7f4a_7c15_u64);
        for _ in 0..TURNS {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        black_box(x);
        cpu_us() - began
    };
    (0..PROBES).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// CPU time of this thread.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Waits until two pieces of work take equally long, for at most `most`. Returns the time of the last one.
pub(crate) fn steady_probe_us(most: Duration) -> f64 {
    let began = Instant::now();
    let mut before = probe_us();
    loop {
        let now = probe_us();
        if (now / before - 1.0).abs() <= STEADY || began.elapsed() >= most {
            return now;
        }
        before = now;
        thread::sleep(PAUSE);
    }
}

/// Android's thermal status; on other Linux the SDK's reading of the thermal zones. `None` if neither has a status.
pub(crate) fn thermal_status() -> Option<u8> {
    let said = output_of("/system/bin/dumpsys", "thermalservice");
    said.as_deref().and_then(thermal_of_dumpsys).or_else(|| {
        Some(match epwatch_sdk::desk::thermal() {
            Thermal::None => 0,
            Thermal::Light => 1,
            Thermal::Moderate => 2,
            Thermal::Severe => 3,
            Thermal::Critical => 4,
            Thermal::Emergency => 5,
            Thermal::Shutdown => 6,
            Thermal::Unknown => return None,
        })
    })
}

fn thermal_of_dumpsys(said: &str) -> Option<u8> {
    let line = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("Thermal Status:"))?;
    line.trim().parse().ok().filter(|status| *status <= 6)
}

/// The battery's temperature in degrees Celsius; `None` without a battery that reports it. An Android that keeps the
/// kernel's files from this program may still answer `dumpsys`.
pub(crate) fn battery_c() -> Option<f64> {
    let folders = fs::read_dir("/sys/class/power_supply");
    let each = folders.into_iter().flatten().flatten();
    let of_kernel = each
        .filter_map(|entry| battery_of(&entry.path()))
        .reduce(f64::max);
    of_kernel.or_else(|| battery_of_dumpsys(&output_of("/system/bin/dumpsys", "battery")?))
}

fn battery_of_dumpsys(said: &str) -> Option<f64> {
    let tenths = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("temperature:"))?;
    celsius(tenths)
}

fn battery_of(folder: &Path) -> Option<f64> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let is_battery = text("type")?.trim() == "Battery";
    celsius(&text("temp")?).filter(|_| is_battery)
}

/// A temperature from tenths of a degree; `None` if no battery can have it.
fn celsius(tenths: &str) -> Option<f64> {
    let celsius = tenths.trim().parse::<f64>().ok()? / 10.0;
    (-60.0..=150.0).contains(&celsius).then_some(celsius)
}

/// The clock of the fastest core in kHz; `None` where the kernel shows none, as in most virtual machines.
pub(crate) fn cpu_khz() -> Option<u64> {
    fastest_core(Path::new("/sys/devices/system/cpu"))
}

fn fastest_core(cores: &Path) -> Option<u64> {
    let clock = |core: &Path| -> Option<u64> {
        let text = fs::read_to_string(core.join("cpufreq/scaling_cur_freq")).ok()?;
        text.trim().parse().ok()
    };
    let each = fs::read_dir(cores).ok()?.flatten();
    each.filter_map(|core| clock(&core.path())).max()
}

/// The output of a program of the platform; `None` if the program is missing.
fn output_of(program: &str, argument: &str) -> Option<String> {
    if !Path::new(program).is_file() {
        return None;
    }
    let said = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    Some(
        String::from_utf8_lossy(&said.ok()?.stdout)
            .trim()
            .to_owned(),
    )
}

/// The device as it describes itself, with fields that the command line replaces.
pub(crate) fn target(command: &RunCommand) -> MeasuredOn {
    let device = desk::device();
    let property =
        |name: &str| output_of("/system/bin/getprop", name).filter(|text| !text.is_empty());
    let known =
        |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty() && text != "unknown");
    let chipset = command.chipset.clone();
    let chipset = chipset.or_else(|| property("ro.soc.model"));
    let name = command.device.clone();
    let name = name.or_else(|| property("ro.product.model"));
    let firmware = command.firmware.clone();
    let firmware = firmware.or_else(|| property("ro.build.fingerprint"));
    MeasuredOn {
        chipset: chipset.or_else(|| known(device.chipset.as_str())),
        device: name.or_else(|| known(&device.model)),
        phone: command.phone.clone(),
        firmware: firmware.or_else(|| known(&device.os_version)),
        os: known(&format!("{} {}", device.os, device.abi)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn androids_status_is_read() {
        let said = "IsStatusOverride: false\nThermalEventListeners:\nThermal Status: 2\nCached temperatures:";
        assert_eq!(thermal_of_dumpsys(said), Some(2));
        assert_eq!(thermal_of_dumpsys("Thermal Status: 9"), None);
        assert_eq!(thermal_of_dumpsys("Can't find service"), None);
    }

    #[test]
    fn a_battery_has_its_temperature_in_tenths() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("type", "Battery\n");
        write("temp", "315\n");
        assert_eq!(battery_of(folder.path()), Some(31.5));
        write("type", "USB\n");
        assert_eq!(battery_of(folder.path()), None);
        write("type", "Battery\n");
        write("temp", "-2731\n");
        assert_eq!(battery_of(folder.path()), None);
        let said = "Current Battery Service state:\n  AC powered: false\n  level: 83\n  temperature: 295\n";
        assert_eq!(battery_of_dumpsys(said), Some(29.5));
        assert_eq!(battery_of_dumpsys("Can't find service: battery"), None);
    }

    #[test]
    fn the_fastest_core_has_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        for (core, khz) in [("cpu0", "1800000\n"), ("cpu7", "3300000\n"), ("cpu8", "\n")] {
            let core = folder.path().join(core).join("cpufreq");
            fs::create_dir_all(&core).unwrap();
            fs::write(core.join("scaling_cur_freq"), khz).unwrap();
        }
        fs::create_dir(folder.path().join("cpuidle")).unwrap();
        assert_eq!(fastest_core(folder.path()), Some(3_300_000));
        assert_eq!(fastest_core(&folder.path().join("cpuidle")), None);
    }
}
