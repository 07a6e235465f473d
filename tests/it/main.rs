//! End to end: the whole path, one module a behaviour.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod action;
mod alertmanager;
mod backup;
mod browser;
mod certify;
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
mod gate_cases;
mod gate_compare;
mod gate_fix;
mod gate_inputs;
mod gate_reports;
mod gate_trend;
mod inspect;
mod install;
mod large_models;
mod late_reads;
mod layering;
mod load;
mod logs;
mod look;
mod metrics;
mod migrate;
mod oncall;
mod orders;
mod page;
mod page_scope;
#[expect(clippy::print_stderr, reason = "a bench says what it does")]
mod page_times;
mod phones;
mod privacy;
mod reasons;
mod releases;
mod schema;
mod secrets;
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
