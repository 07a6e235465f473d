//! Metrics of the process itself, as every Prometheus client library has them: CPU, memory, open files, start time.
//! They come from `/proc`; systems without it have none of them.

use std::fs;

use crate::metrics::{MetricReading, ReadValue};

/// The kernel's unit of CPU time in `/proc`, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the metrics, named without their prefix `process`.
pub(crate) fn readings() -> Vec<MetricReading> {
    read().unwrap_or_default()
}

fn read() -> Option<Vec<MetricReading>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name in brackets may hold anything; the fields after it are counted from the state, field 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |nth: usize| fields.get(nth - 3)?.parse::<f64>().ok();
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |name: &str| {
        let kib = number_after(&status, name)?;
        Some(ReadValue::Gauge(kib.saturating_mul(1024)))
    };
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let booted = number_after(&fs::read_to_string("/proc/stat").ok()?, "btime ")?;
    let open = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
    let started = booted as f64 + field(22)? / TICKS_PER_SECOND;
    let cpu_seconds = (field(14)? + field(15)?) / TICKS_PER_SECOND;
    Some(vec![
        (
            "cpu_seconds",
            "User and system CPU time of the process",
            ReadValue::CounterF64(cpu_seconds),
        ),
        (
            "resident_memory_bytes",
            "Resident memory of the process",
            bytes("VmRSS:")?,
        ),
        (
            "virtual_memory_bytes",
            "Virtual memory of the process",
            bytes("VmSize:")?,
        ),
        (
            "open_fds",
            "Open files of the process",
            ReadValue::Gauge(open),
        ),
        (
            "max_fds",
            "Limit of open files of the process",
            ReadValue::Gauge(number_after(&limits, "Max open files").unwrap_or(u64::MAX)),
        ),
        (
            "start_time_seconds",
            "Start of the process, since 1970",
            ReadValue::GaugeF64(started),
        ),
    ])
}

/// The first number after a name at the start of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn this_process_has_plausible_readings() {
        let found = readings();
        let value = |name: &str| {
            let (.., value) = found.iter().find(|(found, ..)| *found == name).unwrap();
            match value {
                ReadValue::Gauge(n) | ReadValue::Counter(n) => {
                    f64::from(u32::try_from(*n >> 10).unwrap())
                }
                ReadValue::GaugeF64(x) | ReadValue::CounterF64(x) => *x,
            }
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let age = now - value("start_time_seconds");
        assert!((-5.0..86_400.0).contains(&age), "{age} s");
        assert!((0.0..=1e6).contains(&value("cpu_seconds")));
        // In KiB.
        assert!((500.0..1e8).contains(&value("resident_memory_bytes")));
        assert!(value("virtual_memory_bytes") >= value("resident_memory_bytes"));
        let open = found
            .iter()
            .find(|(name, ..)| *name == "open_fds")
            .unwrap()
            .2;
        assert!(matches!(open, ReadValue::Gauge(3..)), "{open:?}");
    }
}
