use epwatch_proto::{Device, PowerSave};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{Conditions, SdkConfig, Watch, config::CoreConfig, core::Core};

/// Trips of a QCS6490's CPUs in Linux's device tree.
fn cpu() -> Trips {
    trips(&[
        ("passive", 90_000, 2_000),
        ("passive", 95_000, 2_000),
        ("critical", 110_000, 1_000),
    ])
}

fn trips(list: &[(&str, i64, i64)]) -> Trips {
    let mut trips = Trips::default();
    for (kind, trip, hysteresis) in list {
        trips.add(kind, *trip, *hysteresis);
    }
    trips
}

#[test]
fn a_zone_is_as_warm_as_its_trip_points_say() {
    for (milli_c, expected) in [
        (-20_000, Thermal::None),
        (41_000, Thermal::None),
        (87_999, Thermal::None),
        (88_000, Thermal::Light),
        (90_000, Thermal::Light),
        (99_999, Thermal::Light),
        (100_000, Thermal::Moderate),
        (109_999, Thermal::Moderate),
        (110_000, Thermal::Critical),
    ] {
        assert_eq!(cpu().thermal_at(milli_c), expected, "{milli_c}");
    }
    let with_hot = trips(&[
        ("passive", 80_000, 0),
        ("hot", 90_000, 0),
        ("critical", 110_000, 0),
    ]);
    assert_eq!(with_hot.thermal_at(84_999), Thermal::Light);
    assert_eq!(with_hot.thermal_at(85_000), Thermal::Moderate);
    assert_eq!(with_hot.thermal_at(90_000), Thermal::Severe);
}

#[test]
fn what_is_not_known_stays_unknown() {
    // A Raspberry Pi: no trip marks the start of throttling.
    let critical_only = trips(&[("critical", 110_000, 0)]);
    assert_eq!(critical_only.thermal_at(85_000), Thermal::Unknown);
    assert_eq!(critical_only.thermal_at(110_000), Thermal::Critical);
    assert_eq!(trips(&[("active", 50_000, 0)]), Trips::default());
    // Trips that are off.
    assert_eq!(
        trips(&[("passive", 0, 0), ("hot", -274_000, 0)]),
        Trips::default()
    );
    // Sensors that are off.
    for milli_c in [0, -273_000, i64::MIN, i64::MAX, 4_294_967_295] {
        assert_eq!(cpu().thermal_at(milli_c), Thermal::Unknown, "{milli_c}");
    }
}

proptest! {
    #[test]
    fn warmer_is_never_cooler(
        list in proptest::collection::vec(
            ("(passive|hot|critical|active)", any::<i32>(), any::<i32>()), 0..5),
        near in proptest::collection::vec(1_i64..200_000, 0..5),
        mut at in proptest::array::uniform2(1_i64..=200_000),
    ) {
        let mut trips = Trips::default();
        for (n, (kind, trip, hysteresis)) in list.iter().enumerate() {
            let trip = near.get(n).copied().unwrap_or(i64::from(*trip));
            trips.add(kind, trip, i64::from(*hysteresis));
        }
        at.sort_unstable();
        let [cool, warm] = at.map(|milli_c| trips.thermal_at(milli_c));
        prop_assert!(cool <= warm, "{cool:?} {warm:?} {trips:?}");
    }
}

fn write(dir: &TempDir, zone: &str, files: &[(&str, &str)]) {
    let zone = dir.path().join(zone);
    fs::create_dir_all(&zone).unwrap();
    for (name, content) in files {
        fs::write(zone.join(name), content).unwrap();
    }
}

fn write_cpu(dir: &TempDir, zone: &str, milli_c: &str) {
    let files = [
        ("type", "cpu0-thermal\n"),
        ("temp", milli_c),
        ("trip_point_0_type", "passive\n"),
        ("trip_point_0_temp", "90000\n"),
        ("trip_point_0_hyst", "2000\n"),
        ("trip_point_1_type", "critical\n"),
        ("trip_point_1_temp", "110000\n"),
    ];
    write(dir, zone, &files);
}

#[test]
fn the_worst_zone_counts_and_broken_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Zones::list(dir.path()).read(), Thermal::Unknown);
    assert_eq!(
        Zones::list(&dir.path().join("none")).read(),
        Thermal::Unknown
    );
    assert!(!has_passive_trips(dir.path()));

    write(
        &dir,
        "thermal_zone0",
        &[("type", "battery"), ("temp", "99000\n")],
    );
    write(
        &dir,
        "thermal_zone1",
        &[
            ("trip_point_0_type", "critical"),
            ("trip_point_0_temp", "x"),
        ],
    );
    write_cpu(&dir, "thermal_zone2", "not a number\n");
    write_cpu(&dir, "thermal_zone3", &"9".repeat(100_000));
    write_cpu(&dir, "cooling_device0", "105000\n");
    write_cpu(&dir, "thermal_zone", "105000\n");
    write_cpu(&dir, "thermal_zone4", "105000\n");
    write(&dir, "thermal_zone4", &[("mode", "disabled\n")]);
    assert_eq!(Zones::list(dir.path()).read(), Thermal::Unknown);

    write_cpu(&dir, "thermal_zone5", "41000\n");
    assert!(has_passive_trips(dir.path()));
    let zones = Zones::list(dir.path());
    assert_eq!(zones.read(), Thermal::None);
    write_cpu(&dir, "thermal_zone2", "91000\n");
    assert_eq!(zones.read(), Thermal::Light);
    fs::remove_dir_all(dir.path().join("thermal_zone2")).unwrap();
    assert_eq!(zones.read(), Thermal::None);
}

fn core() -> Core {
    let config = CoreConfig::new("app", Device::default()).unwrap();
    Core::new(
        config,
        crate::random_stream(),
        crate::time::Clock::start().now(),
    )
}

#[test]
fn zones_are_read_every_ten_seconds_and_listed_less_often() {
    let dir = tempfile::tempdir().unwrap();
    let conditions = core().conditions;
    let mut reader = ThermalReader::new(Arc::clone(&conditions), dir.path());
    let start = Instant::now();
    assert_eq!(reader.wait(start), None);
    reader.refresh(start, true);
    assert_eq!(conditions.get().thermal(), Thermal::Unknown);
    assert_eq!(reader.wait(start), Some(INTERVAL));

    // A driver that loads late is found within five minutes.
    write_cpu(&dir, "thermal_zone0", "41000\n");
    let mut now = start;
    for _ in 0..READINGS_A_LISTING {
        now += reader.wait(now).unwrap();
        reader.refresh(now, true);
    }
    assert_eq!(conditions.get().thermal(), Thermal::None);
    write_cpu(&dir, "thermal_zone0", "91000\n");
    reader.refresh(now + INTERVAL / 2, true);
    assert_eq!(conditions.get().thermal(), Thermal::None);
    reader.refresh(now + INTERVAL, true);
    assert_eq!(conditions.get().thermal(), Thermal::Light);

    reader.refresh(now + INTERVAL, false);
    assert_eq!(conditions.get().thermal(), Thermal::Unknown);
    assert_eq!(reader.wait(now), None);
    reader.refresh(now + INTERVAL, true);
    assert_eq!(conditions.get().thermal(), Thermal::Light);
    drop(reader);
    assert_eq!(conditions.get().thermal(), Thermal::Unknown);
}

#[test]
fn a_watch_reads_heat_and_leaves_the_rest_to_its_host() {
    let (zones, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_cpu(&zones, "thermal_zone0", "91000\n");
    let config = SdkConfig::builder("app", "http://127.0.0.1:9", "key", dir.path())
        .with_consent(true)
        .with_upload_interval(Duration::from_secs(3600))
        .with_thermal_zones(true);
    let mut config = config.build().unwrap();
    config.thermal_zones = Some(zones.path().to_owned());
    let watch = Watch::start(config).unwrap();
    let now = || watch.shared.core().conditions.get();
    let until = |thermal| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while now().thermal() != thermal {
            assert!(Instant::now() < deadline, "{:?}", now().thermal());
            std::thread::yield_now();
        }
    };
    until(Thermal::Light);
    let host = Conditions::unknown().with_thermal(Thermal::Severe.into());
    watch.set_conditions(&host.with_power_save(PowerSave::On.into()));
    let both = (now().thermal(), now().power_save());
    assert_eq!(both, (Thermal::Light, PowerSave::On));
    watch.set_consent(false);
    until(Thermal::Unknown);
    watch.set_consent(true);
    until(Thermal::Light);
    watch.stop(Duration::from_secs(20)).unwrap();
    until(Thermal::Unknown);
}
