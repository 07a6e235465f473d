//! Defaults and limits of the SDK, each with its reason.
//!
//! Behaviour never depends on the build. Tests and simulations pass other values through
//! [`SdkConfig`](crate::SdkConfig).

use std::time::Duration;

/// Maximum number of kinds of failed starts that `explain` lists for the life of a process.
pub const MAX_EXPLAINED_FAILURES: usize = 16;

/// Number of runs of a session that count as cold. On an NPU the first three runs cost 3-20x, 1.25x and 1.06x of a warm
/// one. From the fourth on the difference is smaller than the noise.
pub const COLD_RUNS: u64 = 3;

/// Minimum number of threads that can record one session at the same moment without losing a sample. `ort` runs a
/// session from one thread at a time; hosts of the C API use a few. A session has one shard for each processor, and at
/// least this many.
pub const MIN_SHARDS: usize = 4;

/// Maximum number of shards of a session; an idle shard takes 128 bytes.
pub const MAX_SHARDS: usize = 32;

/// Maximum number of series of a session in an interval. Further series share an overflow series, and are counted.
/// Phase, thermal state and session age of one input shape make about a dozen.
pub const MAX_SERIES_PER_SESSION: usize = 24;

/// Input shapes of a session with series of their own; others share `other`. A model with more shapes has arbitrary
/// sizes, and each shape would have too few runs for statistics.
pub const MAX_SHAPES_PER_SESSION: usize = 8;

/// Maximum number of performance modes of a process that keep their own names. QNN has nine.
pub const MAX_PERFORMANCE_MODES: usize = 16;

/// A run is slow beyond this multiple of the series' running low. The detector counts with the same factor.
pub const SLOW_FACTOR: f64 = 1.7;

/// The running low grows by this factor per run, so that one lucky run does not make all later ones slow. It doubles
/// in 700 runs.
pub const LOW_CREEP: f64 = 1.001;

/// Clean runs after which a version's latency counts as known. A p95 of fewer than 20 runs means nothing.
pub const SETTLED_RUNS: u64 = 20;

/// Clean runs after which a version's baseline stops changing. By then p95 is known to a fraction of a per cent, and a
/// later fault must not become the baseline.
pub const MAX_BASELINE_RUNS: u64 = 10_000;

/// Maximum number of models and shapes with a baseline. The entry unused for longest is evicted first.
pub const MAX_BASELINES: usize = 64;

/// Maximum number of baseline updates kept in memory while their file cannot be written, enough for some hours.
pub const MAX_BASELINE_UPDATES: usize = 256;

/// Largest file of baselines: enough for 64 entries that fill every bucket.
pub const MAX_BASELINES_BYTES: u64 = 4 << 20;

/// Time between two seals. Short enough that a fault shows the same day on a phone used for minutes. Long enough that a
/// report holds a useful number of runs.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Largest spool of one process. It holds more than twelve days of reports of one busy model. When it is full the
/// oldest segment is dropped first: a fresh regression matters more than an old one. Each of the processes that share a
/// folder may take as much. The rest of an ended process counts for the process that took it over.
pub const MAX_SPOOL_BYTES: u64 = 8 << 20;

/// Older reports are dropped. The collector keeps raw rows for 14 days, which leaves two days for the upload.
pub const MAX_SPOOL_AGE: Duration = Duration::from_secs(12 * 24 * 3600);

/// Size at which a segment is closed. Small enough that dropping the oldest loses little, large enough that a full
/// spool is some dozens of files.
pub const SEGMENT_BYTES: u64 = 128 << 10;

/// Maximum number of ended streams that wait beyond the number that a report can name, each in its own folder. An app
/// that crashed at some hundred starts without a network has this many.
pub const MAX_UNTAKEN_STREAMS: usize = 256;

/// Disk space that a stream's folder takes in addition to its reports: one block for the folder and one for its state.
pub const STREAM_DIR_BYTES: u64 = 8 << 10;

/// Time between two uploads of waiting reports.
pub const UPLOAD_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Shortest interval that a collector may ask for. A faulty collector must not keep a device awake.
pub const MIN_ADVISED_INTERVAL: Duration = Duration::from_secs(1);

/// Deadline of one call. Keeping the radio awake for a dead connection costs more than another attempt.
pub const UPLOAD_DEADLINE: Duration = Duration::from_secs(30);

/// A connection that was idle for longer, including the device's sleep, is replaced. The SDK does not read it between
/// calls, so it cannot answer pings. Collectors close such a connection after 80 seconds, and after a change of network
/// it is dead.
pub const MAX_IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// First wait after a failed upload; doubled each time.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(5);

/// Longest wait after failed uploads.
pub const BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// Shortest wait after the collector refused the app key. Somebody has to register the key or ship another one first,
/// and a fleet with a wrong key must not load the collector.
pub const KEY_REFUSED_WAIT: Duration = Duration::from_secs(3600);

/// Bytes a day on unmetered and unknown networks. This is several times a full spool, and it stops a fault that sends
/// again and again.
pub const UNMETERED_BYTES_PER_DAY: u64 = 64 << 20;

/// Bytes a day on metered networks, if the host allows them: a day's reports of some busy models.
pub const METERED_BYTES_PER_DAY: u64 = 1 << 20;

/// Bytes of a request in addition to its message, for metadata and framing. They are reserved before the request is
/// sent, and then replaced by the number of bytes really sent.
pub const REQUEST_OVERHEAD_BYTES: u64 = 512;

/// Bytes of reports in one request, unless the collector asks for less. This is far below the collector's limit, so
/// that little is sent in vain when a request fails on a phone's uplink.
pub const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Largest sealed report. The contract allows 256 KiB. The difference covers some bytes that packing does not count.
pub const MAX_SEALED_BYTES: usize = 224 << 10;

/// Maximum number of self-test results of one session in one interval. Apps have one or two golden inputs.
pub const MAX_SELF_TESTS_PER_SESSION: usize = 8;

/// Maximum number of self-tests that one process repeats after run errors. By then other figures show the restarts of
/// the DSP, and each repetition costs a session and two runs.
pub const MAX_SELF_TEST_REPEATS: u32 = 8;

/// Longest wait of a self-test for the SDK's folder at the start of a process.
pub const SELF_TEST_WAIT: Duration = Duration::from_secs(5);

/// Number of kinds of start failures in one report. Further ones are added to the last kind.
pub const MAX_START_FAILURES: usize = 32;

/// Number of closed sessions with unsealed runs that causes an early seal.
pub const CLOSED_SESSIONS_TO_SEAL: usize = 128;

/// Maximum number of closed sessions kept if nothing can be sealed, for example on a full disk. Each takes about 2 kB.
pub const MAX_CLOSED_SESSIONS: usize = 512;

/// Number of closed sessions drained on the caller's thread when a session begins, at about ten microseconds each. It
/// is more than one, so that the number of waiting sessions falls.
pub const CLOSED_SESSIONS_PER_CALL: usize = 4;
