//! Every number that decides what the SDK costs or keeps, each with its reason.
//!
//! Behaviour never depends on the build: tests and simulations pass other values through
//! [`Limits`](crate::Limits) and [`SdkConfig`](crate::SdkConfig).

use std::time::Duration;

/// Runs of a session that count as cold. The first runs cost 3-20x, 1.25x and 1.06x of a warm one
/// on an NPU; from the fourth on the difference drowns in the noise.
pub const COLD_RUNS: u64 = 3;

/// Threads that may record one session at the same moment without losing a sample. `ort` runs a
/// session from one thread at a time; hosts of the C API use a few.
pub const SHARDS: usize = 4;

/// Series a session keeps per interval; a run beyond goes into the overflow stratum, which is
/// counted. Phase, thermal state and session age of one input shape make about a dozen.
pub const MAX_SERIES_PER_SESSION: usize = 24;

/// Input shapes that a session tells apart; more are `other`. A model with more is fed free-form
/// sizes, and each would have too few runs to say anything.
pub const MAX_SHAPES_PER_SESSION: usize = 8;

/// Performance modes that a process tells apart. QNN has nine.
pub const MAX_PERFORMANCE_MODES: usize = 16;

/// A run is slow beyond this multiple of the series' running low: the share that the detector
/// counts too.
pub const SLOW_FACTOR: f64 = 1.7;

/// The running low creeps up by this factor a run, so that one lucky run does not make all later
/// ones slow: it doubles in 700 runs.
pub const LOW_CREEP: f64 = 1.001;

/// Clean runs after which a version's latency counts as known. Below 20 a p95 says nothing.
pub const SETTLED_RUNS: u64 = 20;

/// Clean runs after which a version's baseline learns no more: it holds p95 to a fraction of a
/// per cent, and a fault that comes later must not become what the device is used to.
pub const MAX_BASELINE_RUNS: u64 = 10_000;

/// Models and shapes that keep a baseline; the one not seen for longest goes first.
pub const MAX_BASELINES: usize = 64;

/// Lessons kept while the file of baselines cannot be written: those of some hours.
pub const MAX_LESSONS: usize = 256;

/// A file of baselines is no larger: 64 entries that fill every bucket.
pub const MAX_BASELINES_BYTES: u64 = 4 << 20;

/// How often a report is sealed. Short enough that a fault is seen the same day on a phone that
/// is used for minutes, long enough that a report has runs to tell.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Holds more than twelve days of reports of one busy model. When full the oldest segment goes first: a
/// fresh regression matters more than an old one. For each process: several that share a folder may
/// take as much each, and what one that ended left counts with the one that took it over.
pub const MAX_SPOOL_BYTES: u64 = 8 << 20;

/// Older reports are given up: the collector keeps raw rows for 14 days, and with two days for the
/// way none comes later than that.
pub const MAX_SPOOL_AGE: Duration = Duration::from_secs(12 * 24 * 3600);

/// A segment is closed beyond this: small enough that dropping the oldest one loses little, large
/// enough that a full spool is some dozens of files.
pub const SEGMENT_BYTES: u64 = 128 << 10;

/// Ended streams that wait beyond those that a report can name, each in a folder of its own: those
/// of an app that crashed at each of some hundred starts without a network.
pub const MAX_UNTAKEN_STREAMS: usize = 256;

/// What a stream's folder takes on disk beside its reports: a block for itself and one for its
/// state.
pub const STREAM_DIR_BYTES: u64 = 8 << 10;

/// How often the spool is looked through for something to upload.
pub const UPLOAD_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Shortest interval that a collector may ask for: one that is at fault, or is none, must not keep
/// a device awake.
pub const MIN_ADVISED_INTERVAL: Duration = Duration::from_secs(1);

/// A call takes no longer: a radio that is kept awake for a dead connection costs more than the
/// next attempt.
pub const UPLOAD_DEADLINE: Duration = Duration::from_secs(30);

/// A connection that was idle for longer, sleep of the device included, is made anew. Between calls
/// nobody reads it, so it cannot answer pings: collectors close it after 80 seconds, and a network
/// that changed leaves it dead.
pub const MAX_IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// First wait after a failed upload; doubled each time.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(5);

/// Longest wait after failed uploads.
pub const BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// Shortest wait after the collector refused the app key: somebody has to register it or ship
/// another one first, and a fleet with a wrong key must not cost the collector anything.
pub const KEY_REFUSED_WAIT: Duration = Duration::from_secs(3600);

/// Bytes a day on networks that cost nothing, and where the host does not say: a full spool goes
/// out several times over, a fault that repeats does not go on for ever.
pub const UNMETERED_BYTES_PER_DAY: u64 = 64 << 20;

/// Bytes a day on networks that somebody pays for, where the host allows them at all: a day's
/// reports of some busy models.
pub const METERED_BYTES_PER_DAY: u64 = 1 << 20;

/// What a request takes beside its message: the call's metadata and framing. Reserved before it is
/// sent; what was really sent is counted after.
pub const REQUEST_OVERHEAD_BYTES: u64 = 512;

/// Most bytes of reports in one request unless the collector said otherwise. Far below what it
/// accepts: a phone's uplink loses little when a request of this size fails.
pub const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Largest report that is sealed; the contract allows 256 KiB, and the packing does not count the
/// last few bytes.
pub const MAX_SEALED_BYTES: usize = 224 << 10;

/// Self-test results of one session in one interval. Apps have a golden input or two.
pub const MAX_SELF_TESTS_PER_SESSION: usize = 8;

/// Self-tests repeated by one process after run errors. A DSP that restarts more often has been
/// seen by then, and each repetition costs a session and two runs.
pub const MAX_SELF_TEST_REPEATS: u32 = 8;

/// How long a self-test waits for the SDK's folder to be read at the start of a process.
pub const SELF_TEST_WAIT: Duration = Duration::from_secs(5);

/// Start failures kept for one report; more of the same are counted in them.
pub const MAX_START_FAILURES: usize = 32;

/// Sessions that are gone and whose last report is not sealed yet, after which a seal does not
/// wait for its time.
pub const GONE_SESSIONS_TO_SEAL: usize = 128;

/// Such sessions kept where nothing can be sealed, for example on a full disk; about 2 kB each.
pub const MAX_GONE_SESSIONS: usize = 512;

/// Such sessions taken when another one begins, on the caller's thread, at some ten microseconds
/// each. More than one, so that they get fewer.
pub const GONE_SESSIONS_A_CALL: usize = 4;
