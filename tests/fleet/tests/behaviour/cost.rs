//! The CPU cost of a fleet, which must leave the machine's time to the measured server.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epwatch_fleet::{Fleet, Live, Placements, RecordedModel, Scenario};
use epwatch_strict_collector::Collector;

/// Returns the CPU seconds so far of this process's threads with this name (Linux: clock ticks are 10 ms).
fn cpu_seconds(thread_name: &str) -> f64 {
    let mut ticks = 0.0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        if name.ends_with(thread_name) {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        }
    }
    ticks / 100.0
}

/// The demo's shape: a report every two seconds from each of 500 devices.
#[test]
fn five_hundred_devices_leave_most_of_a_core() {
    let collector = Collector::start("key");
    let fleet_runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("fleet-cost")
        .enable_all()
        .build()
        .unwrap();
    let scenario = Scenario::new("app.test", "mixed", "1", 500);
    let placements = Placements::recorded(&[("1", RecordedModel::INT8)]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fleet = Fleet::new(
        scenario,
        placements,
        i64::try_from(now.as_millis()).unwrap(),
    )
    .unwrap();
    let began = Instant::now();
    let live = fleet_runtime
        .block_on(async { Live::start(fleet, &collector.endpoint(), "key") })
        .unwrap();
    while live.progress().acked < 1_500 {
        assert!(
            began.elapsed() < Duration::from_secs(600),
            "{:?}",
            live.progress()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let (cpu, wall) = (cpu_seconds("fleet-cost"), began.elapsed().as_secs_f64());
    let progress = live.progress();
    println!(
        "500 devices, {:.0} reports/s, {:.0} runs/s: {:.1} % of a core, {:.0} us a report",
        progress.acked as f64 / wall,
        progress.runs as f64 / wall,
        100.0 * cpu / wall,
        1e6 * cpu / progress.acked as f64,
    );
    assert!(cpu / wall < 0.5, "{cpu} s of CPU in {wall} s");
    let progress = fleet_runtime.block_on(live.drain(Duration::from_secs(30)));
    assert_eq!(progress.pending, 0, "{progress:?}");
}
