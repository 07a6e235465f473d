//! Intel's build of ONNX Runtime with its EP and OpenVINO, for `inspect --ep openvino` and tests.

use super::plan::{MANYLINUX_X86_64, Pin, Plan, Source};

/// Returns the plan. Only the build for Linux on x86-64 is pinned here.
pub(super) fn plan() -> Plan {
    const VERSION: &str = "1.24.1";
    Plan {
        name: format!("onnxruntime-openvino-{VERSION}"),
        version: VERSION,
        source: Source::Pip {
            package: "onnxruntime-openvino",
            platforms: MANYLINUX_X86_64,
            keep: &["onnxruntime/capi"],
        },
        pins: PINS
            .iter()
            .map(|(path, sha256)| Pin {
                path,
                sha256: Some(sha256),
            })
            .collect(),
        purpose: "runs models on Intel's CPUs, GPUs and NPUs",
        download_bytes: 84_000_000,
        is_unpinned_allowed: false,
    }
}

/// OpenVINO 2025.4 with its plugins. The wheel has some libraries under several names.
const PINS: &[(&str, &str)] = &[
    (
        "onnxruntime/capi/libonnxruntime.so.1.24.1",
        "2d963a419b96018b79dfe63bb50120ddcb724149912a8a6d8ac747a557c089f4",
    ),
    (
        "onnxruntime/capi/libonnxruntime_providers_openvino.so",
        "bf0159d2681d76e7de03fbd302a9204e5490f30816bd41826d57acf7a8dff363",
    ),
    (
        "onnxruntime/capi/libonnxruntime_providers_shared.so",
        "5e02c1ff90e7d71365264dbb6767c00f04a8b57a96cddbc0085c61fa1393250d",
    ),
    (
        "onnxruntime/capi/libopenvino.so",
        "ac9634b715a242a61644c77bc38f17508fe73f517e418027e2410f4bee004943",
    ),
    (
        "onnxruntime/capi/libopenvino.so.2025.4.1",
        "ac9634b715a242a61644c77bc38f17508fe73f517e418027e2410f4bee004943",
    ),
    (
        "onnxruntime/capi/libopenvino.so.2541",
        "ac9634b715a242a61644c77bc38f17508fe73f517e418027e2410f4bee004943",
    ),
    (
        "onnxruntime/capi/libopenvino_auto_plugin.so",
        "1bf94263f5412bc8b392a93a0d37cbbf3ecdeed148eed2612d94503045e14a1f",
    ),
    (
        "onnxruntime/capi/libopenvino_c.so",
        "e515e35253414797438772767dbc4be3a4c8e8940f2fa31954bd711d514e782e",
    ),
    (
        "onnxruntime/capi/libopenvino_c.so.2025.4.1",
        "e515e35253414797438772767dbc4be3a4c8e8940f2fa31954bd711d514e782e",
    ),
    (
        "onnxruntime/capi/libopenvino_c.so.2541",
        "e515e35253414797438772767dbc4be3a4c8e8940f2fa31954bd711d514e782e",
    ),
    (
        "onnxruntime/capi/libopenvino_hetero_plugin.so",
        "5bc208c13f7e13a46fff84c568759237e26ce0dd8dd7c761ba2fc72df02c99c5",
    ),
    (
        "onnxruntime/capi/libopenvino_intel_cpu_plugin.so",
        "034df890550ae9199fe5f8608c0df8fd0fe355f303bad56bea10bae14c14c3cb",
    ),
    (
        "onnxruntime/capi/libopenvino_intel_gpu_plugin.so",
        "5575d03f4a168b257461b83089bc2d0ae7a41ebc1b5ab6b591d26f09c4a3635e",
    ),
    (
        "onnxruntime/capi/libopenvino_intel_npu_plugin.so",
        "5fad291a5cce9b0b5a7d73317ffcb811f6f93f029ce23eb679e9b6b3da88a1ae",
    ),
    (
        "onnxruntime/capi/libopenvino_onnx_frontend.so",
        "f426710881d8c1a01d5ed6d7eaa076d923b19983d3ab3a18bb19d25dba7d8923",
    ),
    (
        "onnxruntime/capi/libopenvino_onnx_frontend.so.2025.4.1",
        "f426710881d8c1a01d5ed6d7eaa076d923b19983d3ab3a18bb19d25dba7d8923",
    ),
    (
        "onnxruntime/capi/libopenvino_onnx_frontend.so.2541",
        "f426710881d8c1a01d5ed6d7eaa076d923b19983d3ab3a18bb19d25dba7d8923",
    ),
    (
        "onnxruntime/capi/libtbb.so",
        "6781dc6aa8b2ca237d0164258e70266a44667756c02a9a039782ec1d1a67b653",
    ),
    (
        "onnxruntime/capi/libtbb.so.12",
        "6781dc6aa8b2ca237d0164258e70266a44667756c02a9a039782ec1d1a67b653",
    ),
    (
        "onnxruntime/capi/libtbbmalloc.so",
        "d7166b1e54c17d8f25be63e22fc2366bbe7b1b8cc3a7ea629dea59caeba9c020",
    ),
];
