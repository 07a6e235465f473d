//! End-to-end tests of the whole path, with one module for each behaviour.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accelerators;
mod action;
mod alertmanager;
mod backup;
mod browser;
mod certify;
mod compiled_models;
mod dashboards;
mod demo;
mod directives;
mod documents;
mod ended_tasks;
mod evidence;
mod examples;
mod faults;
mod fleet;
mod gate;
mod gate_adb;
mod gate_aihub;
mod gate_calibrate;
mod gate_cases;
mod gate_compare;
#[expect(clippy::print_stderr, reason = "a bench says what it does")]
mod gate_decides;
mod gate_fix;
mod gate_inputs;
mod gate_launches;
mod gate_local;
mod gate_reports;
mod gate_ssh;
mod gate_trend;
mod grafana_picture;
mod grafana_schema;
mod inspect;
mod install;
mod large_models;
mod late_reads;
mod layering;
mod load;
mod logs;
mod metrics;
mod migrate;
mod night;
mod oncall;
mod one_fleet;
mod onnx_writer;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod openvino;
mod orders;
mod page;
mod page_scope;
#[expect(clippy::print_stderr, reason = "a bench says what it does")]
mod page_times;
mod phones;
mod privacy;
mod query;
mod reasons;
mod releases;
mod robots;
mod runtime_telemetry;
mod schema;
mod secrets;
mod seen_report;
mod signals;
mod silence;
mod startup;
mod store_away;
mod store_check;
mod store_tls;
mod structure;
mod support;
mod too_old;
mod two_shards;
mod views;
