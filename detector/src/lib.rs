//! Judges cohorts from the store: windows, signals, verdicts, incidents, notifications.
