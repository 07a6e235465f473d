//! Run-time binding of libchdb, and all `unsafe` of this crate.
//!
//! It uses `dlopen`, so builds and most tests need no engine. The calls below keep these rules, each of which
//! avoids a crash or a loss that happened:
//! - the library is never closed: its threads and TLS destructors outlive any handle;
//! - signal handlers are declined before the first connect, otherwise the engine handles SIGTERM;
//! - the engine stops with its last connection, so a caller keeps one open (`chdb_shutdown` is not used);
//! - the process ends by [`exit_now`], never by return: atexit handlers crash it;
//! - rows are sent through the insert stream only, because `chdb_query` cuts inline data at the first blank line and
//!   runs the rest as SQL.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The reason why the engine could not be loaded, or refused a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindingError {
    #[error("failed to load {path}")]
    Load {
        path: PathBuf,
        #[source]
        source: libloading::Error,
    },
    #[error("{path} lacks the function {symbol}: libchdb 26.7 or newer is needed")]
    Symbol { path: PathBuf, symbol: &'static str },
    #[error("failed to open the engine: its own log has the reason")]
    Connect,
    #[error("an engine argument holds a NUL byte")]
    Nul(#[from] std::ffi::NulError),
    /// The engine's own text: `Code: 60. DB::Exception: ... (UNKNOWN_TABLE)`.
    #[error("{0}")]
    Query(String),
}

type ConnectionPtr = *mut c_void;
type ResultPtr = *mut c_void;
type InsertPtr = *mut c_void;

/// Statement with parameters: connection, SQL, format, names, values.
type StatementFn<R> = unsafe extern "C" fn(
    ConnectionPtr,
    *const c_char,
    usize,
    *const c_char,
    usize,
    *const *const c_char,
    *const usize,
    *const *const c_char,
    *const usize,
    usize,
) -> R;

/// Declares the functions of the library that are called here, each with its symbol and its type in chdb.h.
macro_rules! api {
    ($($name:ident = $symbol:literal: $type:ty,)*) => {
        struct Api {
            $($name: $type,)*
        }

        impl Api {
            fn of(library: &Library, path: &Path) -> Result<Api, BindingError> {
                Ok(Api {
                    $($name: {
                        // SAFETY: the type matches the function in chdb.h of 26.7, and the library is never closed,
                        // so the pointer stays valid.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| BindingError::Symbol {
                            path: path.to_owned(),
                            symbol: $symbol,
                        })?
                    },)*
                })
            }
        }
    };
}

api! {
    version = "chdb_version": unsafe extern "C" fn() -> *const c_char,
    set_signal_handlers_enabled = "chdb_set_signal_handlers_enabled": unsafe extern "C" fn(c_int),
    connect = "chdb_connect": unsafe extern "C" fn(c_int, *mut *mut c_char) -> *mut ConnectionPtr,
    close_conn = "chdb_close_conn": unsafe extern "C" fn(*mut ConnectionPtr),
    classify = "chdb_classify_query_n": unsafe extern "C" fn(
        ConnectionPtr,
        *const c_char,
        usize,
        *const c_char,
        usize,
        *mut RawAnalysis,
    ) -> c_int,
    query = "chdb_query_with_params_n": StatementFn<ResultPtr>,
    stream_query = "chdb_stream_query_with_params_n": StatementFn<ResultPtr>,
    stream_fetch = "chdb_stream_fetch_result": unsafe extern "C" fn(ConnectionPtr, ResultPtr) -> ResultPtr,
    stream_cancel = "chdb_stream_cancel_query": unsafe extern "C" fn(ConnectionPtr, ResultPtr),
    stream_insert = "chdb_stream_insert_with_params_n": StatementFn<InsertPtr>,
    insert_append = "chdb_stream_append": unsafe extern "C" fn(InsertPtr, *const c_void, usize) -> c_int,
    insert_done = "chdb_stream_done": unsafe extern "C" fn(InsertPtr) -> ResultPtr,
    insert_cancel = "chdb_stream_cancel_insert": unsafe extern "C" fn(InsertPtr),
    insert_error = "chdb_stream_insert_error": unsafe extern "C" fn(InsertPtr) -> *const c_char,
    insert_destroy = "chdb_destroy_insert_stream": unsafe extern "C" fn(InsertPtr),
    result_destroy = "chdb_destroy_query_result": unsafe extern "C" fn(ResultPtr),
    result_buffer = "chdb_result_buffer": unsafe extern "C" fn(ResultPtr) -> *const c_char,
    result_length = "chdb_result_length": unsafe extern "C" fn(ResultPtr) -> usize,
    result_error = "chdb_result_error": unsafe extern "C" fn(ResultPtr) -> *const c_char,
    result_elapsed = "chdb_result_elapsed": unsafe extern "C" fn(ResultPtr) -> c_double,
    result_rows_read = "chdb_result_rows_read": unsafe extern "C" fn(ResultPtr) -> u64,
    result_bytes_read = "chdb_result_bytes_read": unsafe extern "C" fn(ResultPtr) -> u64,
    storage_rows_read = "chdb_result_storage_rows_read": unsafe extern "C" fn(ResultPtr) -> u64,
    storage_bytes_read = "chdb_result_storage_bytes_read": unsafe extern "C" fn(ResultPtr) -> u64,
    result_rows_written = "chdb_result_rows_written": unsafe extern "C" fn(ResultPtr) -> u64,
    result_bytes_written = "chdb_result_bytes_written": unsafe extern "C" fn(ResultPtr) -> u64,
}

/// The number of the class "control". The classes are read only, mutating, mutating outside databases, control and
/// unknown.
const CONTROL_CLASS: u32 = 3;

/// `chdb_query_analysis_v1`.
#[repr(C)]
#[derive(Default)]
struct RawAnalysis {
    struct_size: u32,
    statement_count: u32,
    flags: u32,
    query_class: u32,
}

/// The engine's analysis of a statement that it does not run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Analysis {
    pub(crate) n_statements: u32,
    /// True for SET, USE, SYSTEM, KILL, BACKUP, ATTACH and similar statements.
    pub(crate) is_control: bool,
}

/// The loaded library. Cheap to copy: the function table lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct EngineLibrary {
    api: &'static Api,
}

impl EngineLibrary {
    /// Loads the library and declines its signal handlers.
    pub(crate) fn load(path: &Path) -> Result<EngineLibrary, BindingError> {
        // SAFETY: loading runs the library's constructors; libchdb's have no precondition. The
        // path is the operator's or the fetched, checksummed one.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|source| {
                BindingError::Load {
                    path: path.to_owned(),
                    source,
                }
            })?;
        let api = Api::of(&library, path)?;
        std::mem::forget(library);
        let engine = EngineLibrary {
            api: Box::leak(Box::new(api)),
        };
        // SAFETY: this sets a plain flag of the library, before any connection exists.
        unsafe { (engine.api.set_signal_handlers_enabled)(0) };
        Ok(engine)
    }

    /// Returns the library's version text.
    pub(crate) fn version(&self) -> String {
        // SAFETY: it is a static NUL-terminated string of the library.
        let text = unsafe { CStr::from_ptr((self.api.version)()) };
        text.to_string_lossy().into_owned()
    }

    /// Opens a connection, which has a session of its own. All connections share the process's database folder.
    ///
    /// The first call starts the engine with these arguments; later calls must name the same
    /// `--path`.
    pub(crate) fn connect(&self, args: &[String]) -> Result<EngineConnection, BindingError> {
        let mut owned = vec![CString::new("clickhouse")?];
        for arg in args {
            owned.push(CString::new(arg.as_str())?);
        }
        let mut argv: Vec<*mut c_char> = owned.iter().map(|a| a.as_ptr().cast_mut()).collect();
        let argc = c_int::try_from(argv.len()).expect("a dozen arguments fit an int");
        // SAFETY: argv points to argc NUL-terminated strings that outlive the call; the engine
        // copies them and writes to none.
        let handle = unsafe { (self.api.connect)(argc, argv.as_mut_ptr()) };
        // SAFETY: a non-null handle points to the connection pointer.
        if handle.is_null() || unsafe { *handle }.is_null() {
            return Err(BindingError::Connect);
        }
        Ok(EngineConnection {
            api: self.api,
            handle,
        })
    }
}

/// One session. The engine runs one statement at a time per connection, so methods take `&mut self`.
pub(crate) struct EngineConnection {
    api: &'static Api,
    handle: *mut ConnectionPtr,
}

// SAFETY: the engine keeps no thread affinity for a connection; it needs only that one thread
// at a time uses it, which `&mut self` gives.
unsafe impl Send for EngineConnection {}

impl EngineConnection {
    fn raw(&self) -> ConnectionPtr {
        // SAFETY: it was checked to be non-null at connect, and is valid until drop.
        unsafe { *self.handle }
    }

    /// Runs one statement and returns its whole result.
    pub(crate) fn query(
        &mut self,
        sql: &str,
        format: &str,
        params: &[(String, String)],
    ) -> Result<QueryResult, BindingError> {
        let result = self.statement(self.api.query, sql, format, params);
        QueryResult::checked(self.api, result)
    }

    /// Runs a statement of ours whose result does not matter.
    pub(crate) fn execute(&mut self, sql: &str) -> Result<(), BindingError> {
        self.query(sql, "TabSeparated", &[]).map(drop)
    }

    /// Starts a SELECT that is fetched in chunks.
    pub(crate) fn stream(
        &mut self,
        sql: &str,
        format: &str,
        params: &[(String, String)],
    ) -> Result<SelectStream<'_>, BindingError> {
        let head = self.statement(self.api.stream_query, sql, format, params);
        let head = QueryResult::checked(self.api, head)?;
        Ok(SelectStream {
            connection: self,
            head,
            done: false,
        })
    }

    /// Starts an INSERT whose rows follow. `sql` must have no FORMAT clause.
    pub(crate) fn insert(
        &mut self,
        sql: &str,
        format: &str,
        params: &[(String, String)],
    ) -> Result<InsertStream<'_>, BindingError> {
        let handle = self.statement(self.api.stream_insert, sql, format, params);
        if handle.is_null() {
            return Err(BindingError::Query(internal("the insert did not start")));
        }
        let stream = InsertStream {
            connection: self,
            handle,
            done: false,
        };
        stream.check()?;
        Ok(stream)
    }

    /// Classifies `sql` with the engine's parser. `None` if the parser cannot read it.
    pub(crate) fn classify(&mut self, sql: &str) -> Option<Analysis> {
        let mut raw = RawAnalysis {
            struct_size: u32::try_from(size_of::<RawAnalysis>()).expect("16 bytes"),
            ..RawAnalysis::default()
        };
        // SAFETY: sql is valid for its length, `raw` for the size it states; no target database.
        let code = unsafe {
            (self.api.classify)(
                self.raw(),
                sql.as_ptr().cast(),
                sql.len(),
                std::ptr::null(),
                0,
                &raw mut raw,
            )
        };
        (code == 0).then_some(Analysis {
            n_statements: raw.statement_count,
            is_control: raw.query_class == CONTROL_CLASS,
        })
    }

    fn statement<R>(
        &mut self,
        function: StatementFn<R>,
        sql: &str,
        format: &str,
        params: &[(String, String)],
    ) -> R {
        let names: Vec<*const c_char> = params.iter().map(|p| p.0.as_ptr().cast()).collect();
        let name_lengths: Vec<usize> = params.iter().map(|p| p.0.len()).collect();
        let values: Vec<*const c_char> = params.iter().map(|p| p.1.as_ptr().cast()).collect();
        let value_lengths: Vec<usize> = params.iter().map(|p| p.1.len()).collect();
        // SAFETY: every pointer is valid for the length next to it for the whole call, and the
        // engine copies what it keeps.
        unsafe {
            function(
                self.raw(),
                sql.as_ptr().cast(),
                sql.len(),
                format.as_ptr().cast(),
                format.len(),
                names.as_ptr(),
                name_lengths.as_ptr(),
                values.as_ptr(),
                value_lengths.as_ptr(),
                params.len(),
            )
        }
    }
}

impl Drop for EngineConnection {
    fn drop(&mut self) {
        // SAFETY: it is ours since connect, and is closed once. Streams borrow it, so none is left.
        unsafe { (self.api.close_conn)(self.handle) };
    }
}

/// Rows and bytes that a statement read and wrote.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Stats {
    pub(crate) elapsed_ns: u64,
    pub(crate) result_rows: u64,
    pub(crate) result_bytes: u64,
    pub(crate) read_rows: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_rows: u64,
    pub(crate) written_bytes: u64,
}

/// A result buffer of the engine.
pub(crate) struct QueryResult {
    api: &'static Api,
    result: ResultPtr,
}

// SAFETY: it is an owned heap object; reading it has no thread affinity.
unsafe impl Send for QueryResult {}

impl QueryResult {
    fn checked(api: &'static Api, result: ResultPtr) -> Result<QueryResult, BindingError> {
        if result.is_null() {
            return Err(BindingError::Query(internal("the engine gave no result")));
        }
        let result = QueryResult { api, result };
        // SAFETY: the result is live; the text, if any, belongs to it and is copied.
        unsafe { refusal((api.result_error)(result.result)) }.map(|()| result)
    }

    /// Returns the formatted rows.
    pub(crate) fn data(&self) -> &[u8] {
        // SAFETY: buffer and length describe one allocation that lives as long as the result.
        unsafe {
            let length = (self.api.result_length)(self.result);
            let buffer = (self.api.result_buffer)(self.result);
            if length == 0 || buffer.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(buffer.cast(), length)
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let (api, result) = (self.api, self.result);
        // SAFETY: these are plain getters on a live result.
        let (stats, elapsed_s) = unsafe {
            let stats = Stats {
                elapsed_ns: 0,
                result_rows: (api.result_rows_read)(result),
                result_bytes: (api.result_bytes_read)(result),
                read_rows: (api.storage_rows_read)(result),
                read_bytes: (api.storage_bytes_read)(result),
                written_rows: (api.result_rows_written)(result),
                written_bytes: (api.result_bytes_written)(result),
            };
            (stats, (api.result_elapsed)(result))
        };
        let elapsed = std::time::Duration::try_from_secs_f64(elapsed_s).unwrap_or_default();
        Stats {
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            ..stats
        }
    }
}

impl AsRef<[u8]> for QueryResult {
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}

impl Drop for QueryResult {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is destroyed once.
        unsafe { (self.api.result_destroy)(self.result) };
    }
}

/// A running SELECT. If it is dropped before its end, it is cancelled.
pub(crate) struct SelectStream<'a> {
    connection: &'a mut EngineConnection,
    head: QueryResult,
    done: bool,
}

impl SelectStream<'_> {
    /// Returns the next chunk of rows, or `None` at the end.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<QueryResult>, BindingError> {
        if self.done {
            return Ok(None);
        }
        let api = self.connection.api;
        // SAFETY: the stream is live and not cancelled.
        let chunk = unsafe { (api.stream_fetch)(self.connection.raw(), self.head.result) };
        let chunk = QueryResult::checked(api, chunk);
        self.done = !matches!(&chunk, Ok(chunk) if !chunk.data().is_empty());
        chunk.map(|chunk| (!self.done).then_some(chunk))
    }
}

impl Drop for SelectStream<'_> {
    fn drop(&mut self) {
        if !self.done {
            let api = self.connection.api;
            // SAFETY: it is live and not finished; its result is destroyed after this.
            unsafe { (api.stream_cancel)(self.connection.raw(), self.head.result) };
        }
    }
}

/// A running INSERT. If it is dropped before [`finish`](Self::finish), it is cancelled.
pub(crate) struct InsertStream<'a> {
    connection: &'a mut EngineConnection,
    handle: InsertPtr,
    done: bool,
}

impl InsertStream<'_> {
    /// Passes on the next bytes of the rows; they may end anywhere.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<(), BindingError> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the stream is live, data valid for its length and copied by the engine.
        let code = unsafe {
            (self.connection.api.insert_append)(self.handle, data.as_ptr().cast(), data.len())
        };
        if code != 0 {
            self.check()?;
            return Err(BindingError::Query(internal(
                "the insert took no more rows",
            )));
        }
        Ok(())
    }

    /// Writes the rows. They are in the store when this returns.
    pub(crate) fn finish(mut self) -> Result<Stats, BindingError> {
        self.done = true;
        let api = self.connection.api;
        // SAFETY: the stream is live; `done` keeps drop from cancelling it.
        let result = unsafe { (api.insert_done)(self.handle) };
        QueryResult::checked(api, result).map(|result| result.stats())
    }

    fn check(&self) -> Result<(), BindingError> {
        // SAFETY: the stream is live; its text is copied.
        unsafe { refusal((self.connection.api.insert_error)(self.handle)) }
    }
}

impl Drop for InsertStream<'_> {
    fn drop(&mut self) {
        let api = self.connection.api;
        // SAFETY: it is ours, is cancelled only if it is not finished, and is destroyed once.
        unsafe {
            if !self.done {
                (api.insert_cancel)(self.handle);
            }
            (api.insert_destroy)(self.handle);
        }
    }
}

fn internal(text: &str) -> String {
    format!("Code: 1002. DB::Exception: {text}. (UNKNOWN_EXCEPTION)")
}

/// Returns the engine's text as an error, if there is one.
///
/// # Safety
/// `text` is null or a live NUL-terminated string.
unsafe fn refusal(text: *const c_char) -> Result<(), BindingError> {
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    match text.is_empty() {
        true => Ok(()),
        false => Err(BindingError::Query(text.to_string_lossy().into_owned())),
    }
}

/// Ends the process at once, without atexit handlers and destructors.
///
/// With the engine loaded, ending by a return or `process::exit` crashed 12 times of 12.
pub(crate) fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` has no precondition.
    unsafe { libc::_exit(c_int::from(code)) }
}

/// Makes the kernel send SIGTERM when the thread that spawned this process ends.
///
/// Linux only. Elsewhere the end of the control channel has the same effect a little later.
pub(crate) fn end_with_parent() {
    #[cfg(target_os = "linux")]
    // SAFETY: this sets one attribute of this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
    }
}
