//! Simulated devices that record, report and upload with the real SDK.
