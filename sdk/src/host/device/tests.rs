//! Device trees of boards. Names and values come from Linux and its `qcom,ids.h`.

use std::fs;

use epwatch_proto::RamClass;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const COMPATIBLE: &str = "proc/device-tree/compatible";
const MODEL: &str = "proc/device-tree/model";

fn tree(files: &[(&str, &[u8])]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn device(files: &[(&str, &[u8])]) -> Device {
    read_from(tree(files).path())
}

/// A collector refuses longer texts.
#[track_caller]
fn assert_fits(device: &Device) {
    for (text, max) in [
        (&device.chipset_raw, 128),
        (&device.soc_manufacturer, 64),
        (&device.board, 64),
        (&device.manufacturer, 64),
        (&device.model, 64),
        (&device.os_version, 64),
    ] {
        assert!(text.len() <= max, "{text:?}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

#[test]
fn an_rb3_gen_2_has_every_fact() {
    let device = device(&[
        (COMPATIBLE, b"qcom,qcs6490-rb3gen2\0qcom,qcs6490\0"),
        (MODEL, b"Qualcomm Technologies, Inc. Robotics RB3gen2\0"),
        ("sys/devices/soc0/family", b"Snapdragon\n"),
        ("sys/devices/soc0/machine", b"QCS6490\n"),
        ("sys/devices/soc0/soc_id", b"498\n"),
        ("sys/devices/soc0/revision", b"1.0\n"),
        ("sys/devices/soc0/serial_number", b"3735928559\n"),
        (
            "etc/os-release",
            b"NAME=\"Qualcomm Linux\"\nID=qcom-wayland\nVERSION_ID=\"1.3\"\nBUILD_ID='r7'\n",
        ),
        ("proc/sys/kernel/osrelease", b"6.6.52\n"),
        (
            "proc/meminfo",
            b"MemTotal:        5559312 kB\nMemFree: 1 kB\n",
        ),
        ("sys/class/thermal/thermal_zone0/type", b"cpu0-thermal\n"),
        ("sys/class/thermal/thermal_zone0/temp", b"41000\n"),
        (
            "sys/class/thermal/thermal_zone0/trip_point_0_type",
            b"passive\n",
        ),
        (
            "sys/class/thermal/thermal_zone0/trip_point_0_temp",
            b"90000\n",
        ),
    ]);
    assert_eq!(device.chipset.as_str(), "QCS6490");
    assert_eq!(device.soc_manufacturer, "Qualcomm");
    assert_eq!((device.soc_id, device.hexagon_arch), (Some(498), Some(68)));
    assert_eq!(device.board, "qcom,qcs6490-rb3gen2");
    assert_eq!(device.manufacturer, "Qualcomm");
    assert_eq!(device.model, "Qualcomm Technologies, Inc. Robotics RB3gen2");
    assert_eq!(device.os_version, "qcom-wayland 1.3, kernel 6.6.52");
    assert_eq!(device.ram_class, RamClass::From4To6Gib);
    assert_eq!(device.reportable_contexts, [ContextKind::Thermal]);
    assert!(!format!("{device:?}").contains("3735928559"), "a serial");
    assert_fits(&device);
}

#[test]
fn a_board_of_mainline_has_the_chip_of_its_first_entry_if_the_last_is_a_sibling() {
    let rb3 = device(&[(COMPATIBLE, b"qcom,qcs6490-rb3gen2\0qcom,qcm6490\0")]);
    assert_eq!(rb3.chipset.as_str(), "QCS6490");
    assert_eq!(rb3.hexagon_arch, Some(68));
    let ride = b"qcom,qcs9100-ride\0qcom,qcs9100\0qcom,sa8775p\0";
    let ride = device(&[(COMPATIBLE, ride)]);
    assert_eq!(ride.chipset.as_str(), "QCS9100");
    assert_eq!(ride.hexagon_arch, Some(73));
}

/// Entries from Linux's sources. The chip is the last entry or the one before it.
#[test]
fn boards_in_the_field_have_their_chipset_and_its_hexagon_version() {
    #[track_caller]
    fn check(compatible: &[u8], machine: &[u8], chipset: &str, hexagon: Option<u32>) {
        let device = device(&[
            (COMPATIBLE, compatible),
            ("sys/devices/soc0/family", b"Snapdragon\n"),
            ("sys/devices/soc0/machine", machine),
        ]);
        assert_eq!(device.chipset.as_str(), chipset);
        assert_eq!(device.hexagon_arch, hexagon, "{chipset}");
        assert_fits(&device);
    }
    // RB3 Gen 2, by its sibling alone and by the socinfo driver.
    check(b"qcom,qcm6490\0", b"", "QCM6490", Some(68));
    check(
        b"qcom,qcm6490-idp\0qcom,qcm6490\0",
        b"QCM6490\n",
        "QCM6490",
        Some(68),
    );
    check(b"fairphone,fp5\0qcom,qcm6490\0", b"", "QCM6490", Some(68));
    // RB5: Hexagon v66 has no HTP, so QNN's HTP libraries do not name this version.
    let rb5 = b"qcom,qrb5165-rb5\0qcom,qrb5165\0qcom,sm8250\0";
    check(rb5, b"", "SM8250", None);
    check(
        b"qcom,sa8775p-ride\0qcom,sa8775p\0",
        b"",
        "SA8775",
        Some(73),
    );
    check(
        b"qcom,qcs8550-aim300-aiot\0qcom,qcs8550-aim300\0qcom,qcs8550\0qcom,sm8550\0",
        b"QCS8550\n",
        "QCS8550",
        Some(73),
    );
    check(
        b"lenovo,thinkpad-x13s\0qcom,sc8280xp\0",
        b"",
        "SC8280XP",
        Some(68),
    );
    check(
        b"qcom,qcs8300-ride\0qcom,qcs8300\0",
        b"",
        "QCS8300",
        Some(75),
    );
}

#[test]
fn a_qcs9100_is_recognised_by_the_socinfo_driver_alone() {
    let device = device(&[
        ("sys/devices/soc0/family", b"Snapdragon\n"),
        ("sys/devices/soc0/machine", b"QCS9100\n"),
        ("sys/devices/soc0/soc_id", b"667\n"),
    ]);
    assert_eq!(device.chipset.as_str(), "QCS9100");
    assert_eq!((device.soc_id, device.hexagon_arch), (Some(667), Some(73)));
}

#[test]
fn another_makers_board_has_that_maker() {
    let dragon = device(&[
        (COMPATIBLE, b"radxa,dragon-q6a\0qcom,qcs6490\0"),
        (MODEL, b"Radxa Dragon Q6A\0"),
        ("proc/meminfo", b"MemTotal:  8000000 kB\nx"),
    ]);
    assert_eq!(dragon.chipset.as_str(), "QCS6490");
    assert_eq!(dragon.manufacturer, "radxa");
    assert_eq!(dragon.soc_manufacturer, "Qualcomm");
    assert_eq!(dragon.ram_class, RamClass::From8To12Gib);
}

#[test]
fn a_board_without_a_qualcomm_chip_keeps_its_own_words() {
    let pi = device(&[
        (COMPATIBLE, b"raspberrypi,4-model-b\0brcm,bcm2711\0"),
        (MODEL, b"Raspberry Pi 4 Model B Rev 1.4\0"),
        ("proc/device-tree/serial-number", b"10000000deadbeef\0"),
        ("sys/devices/soc0/soc_id", b"jep106:0070:0111\n"),
        ("usr/lib/os-release", b"ID=debian\nVERSION_ID=\"12\"\n"),
        // This device's zone has no passive trip, because the firmware throttles.
        ("sys/class/thermal/thermal_zone0/temp", b"41000\n"),
        (
            "sys/class/thermal/thermal_zone0/trip_point_0_type",
            b"critical\n",
        ),
        (
            "sys/class/thermal/thermal_zone0/trip_point_0_temp",
            b"110000\n",
        ),
    ]);
    assert_eq!(pi.chipset.as_str(), "other:bcm2711");
    assert_eq!(
        (&*pi.soc_manufacturer, &*pi.manufacturer),
        ("brcm", "raspberrypi")
    );
    assert_eq!(pi.model, "Raspberry Pi 4 Model B Rev 1.4");
    assert_eq!((pi.soc_id, pi.hexagon_arch), (None, None));
    assert_eq!(pi.os_version, "debian 12");
    assert_eq!(pi.reportable_contexts, []);
    assert!(!format!("{pi:?}").contains("deadbeef"), "a serial");
    // This vendor's driver reports the board in that file.
    let imx = device(&[
        (COMPATIBLE, b"fsl,imx8mp-evk\0fsl,imx8mp\0"),
        ("sys/devices/soc0/family", b"Freescale i.MX\n"),
        ("sys/devices/soc0/machine", b"NXP SM8650 lookalike board\n"),
    ]);
    assert_eq!(imx.chipset.as_str(), "other:imx8mp");
}

#[test]
fn a_machine_without_any_of_it_is_unknown_and_not_refused() {
    let device = device(&[]);
    assert_eq!(device.chipset.as_str(), "other:unknown");
    assert_eq!(device.ram_class, RamClass::Unknown);
    assert_eq!(
        device.vendor_fingerprint_hash,
        Device::default().vendor_fingerprint_hash
    );
    assert_eq!(
        (&*device.os_version, &*device.board, &*device.manufacturer),
        ("", "", "")
    );
    assert_eq!((device.soc_id, device.hexagon_arch), (None, None));
    assert_eq!(device.reportable_contexts, []);
}

#[test]
fn the_abi_is_the_one_phones_have_too() {
    let device = device(&[]);
    let expected = match std::env::consts::ARCH {
        "aarch64" => "arm64-v8a",
        "x86_64" => "x86_64",
        _ => return assert!(!device.abi.is_empty()),
    };
    assert_eq!(device.abi, expected);
}

#[test]
fn an_update_of_the_image_changes_the_fingerprint_and_another_robot_does_not() {
    let of = |build: &str, serial: &str| {
        let release = format!("ID=robot\nBUILD_ID={build}\n");
        let files: &[(&str, &[u8])] = &[
            ("etc/os-release", release.as_bytes()),
            ("proc/device-tree/serial-number", serial.as_bytes()),
        ];
        device(files).vendor_fingerprint_hash
    };
    assert_eq!(of("1", "a"), of("1", "b"));
    assert_ne!(of("1", "a"), of("2", "a"));
}

#[test]
fn files_that_are_too_large_count_as_missing() {
    let large = vec![b'x'; 1 << 20];
    let device = device(&[(MODEL, &large), (COMPATIBLE, b"qcom,qcs6490")]);
    assert_eq!(device.model, "");
    assert_eq!(device.chipset.as_str(), "QCS6490");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_content_of_the_files_fits_a_report(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        prefix in "(qcom,|ID=|MemTotal: |)",
    ) {
        let content = [prefix.as_bytes(), &bytes].concat();
        let paths = [
            COMPATIBLE, MODEL, "sys/devices/soc0/machine", "sys/devices/soc0/family",
            "sys/devices/soc0/soc_id", "etc/os-release", "proc/sys/kernel/osrelease", "proc/meminfo",
        ];
        assert_fits(&device(&paths.map(|path| (path, &*content))));
    }
}
