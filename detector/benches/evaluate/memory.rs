//! Memory and processor time of this process and of its engine, as Linux reports them.

use std::fs;

/// Peak resident memory of this process, in bytes; 0 where the system does not report it.
pub(crate) fn own() -> u64 {
    peak("self")
}

/// Peak resident memory of the only child process, the engine.
pub(crate) fn of_child() -> u64 {
    child().map_or(0, |pid| peak(&pid))
}

fn peak(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) * 1024
}

/// Processor seconds that a process used; `self` stands for this process.
pub(crate) fn cpu_seconds(pid: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Skips the name in brackets, which may contain any character. User and system time are fields 12 and 13 after it.
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let fields = rest.split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// The only child's id.
pub(crate) fn child() -> Option<String> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let children = tasks.filter_map(|task| {
        let path = task.ok()?.path().join("children");
        fs::read_to_string(path).ok()
    });
    children
        .flat_map(|line| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .next()
}
