//! The child's life: start, death, locks, parents, configuration, stop.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use epwatch_store::embedded::{
    ChildProgram, EmbeddedConfig, EmbeddedError, EmbeddedStore, EngineFailure, EngineState,
};
use epwatch_test_support::{chdb_library, engine_config, until};

use crate::support::{TestStore, is_running, kill, pid_of, ready};

#[tokio::test]
async fn a_stopped_engine_is_gone_and_starts_again_with_its_rows() {
    let test = TestStore::start().await;
    test.execute("CREATE TABLE a (x UInt64) ENGINE = MergeTree ORDER BY x")
        .await;
    test.execute("INSERT INTO a SELECT number FROM numbers(100)")
        .await;
    let pid = pid_of(&test.store).unwrap();
    let (state, client) = (test.store.state(), test.client());
    test.store.stop().await;
    assert!(matches!(*state.borrow(), EngineState::Stopped));
    assert!(!is_running(pid));
    assert!(client.query("SELECT 1").execute().await.is_err());

    let again = ready(engine_config(test.dir.path())).await;
    let count = again
        .client("t")
        .query("SELECT count() FROM a")
        .fetch_one::<u64>()
        .await;
    assert_eq!(count.unwrap(), 100);
    again.stop().await;
}

#[tokio::test]
async fn stopping_waits_for_a_running_statement() {
    let test = TestStore::start().await;
    test.execute("CREATE TABLE a (x UInt64) ENGINE = MergeTree ORDER BY x")
        .await;
    let client = test.client();
    let slow = tokio::spawn(async move {
        let sql = "INSERT INTO a SELECT number + ignore(sleepEachRow(0.2)) FROM numbers(5)";
        client.query(sql).execute().await
    });
    let busy = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT%'";
    until("it runs", || async {
        (test.count(busy).await == 1).then_some(())
    })
    .await;
    test.store.stop().await;
    slow.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_killed_child_comes_back_for_the_same_client() {
    let test = TestStore::start().await;
    let client = test.client();
    let first = pid_of(&test.store).unwrap();
    kill(first);
    let second = until("another child is ready", || async {
        pid_of(&test.store).filter(|pid| *pid != first)
    })
    .await;
    assert_ne!(first, second);
    assert_eq!(
        client
            .query("SELECT toUInt64(7)")
            .fetch_one::<u64>()
            .await
            .unwrap(),
        7
    );
    assert!(matches!(
        *test.store.state().borrow(),
        EngineState::Ready { n_restarts: 1, .. }
    ));
    test.store.stop().await;
}

/// For example, an engine crashes, cannot start again because the disk is full, and space is freed an hour later.
#[tokio::test]
async fn an_engine_that_was_ready_comes_back_however_often_it_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    // The script starts the engine, unless the file says that the disk is full.
    let script = "test ! -e \"$1\" || exit 28; EPWATCH_ENGINE_CHILD=1 exec \"$2\" --exact \
                  engine_child_entry --nocapture --test-threads=1";
    let exe = std::env::current_exe().unwrap().into_os_string();
    let args = [
        "-c".into(),
        script.into(),
        "sh".into(),
        full.clone().into_os_string(),
        exe,
    ];
    let program = ChildProgram::new("/bin/sh", args);
    let config = EmbeddedConfig::new(dir.path().join("data"), chdb_library(), program);
    let store = ready(config).await;

    std::fs::write(&full, "").unwrap();
    kill(pid_of(&store).unwrap());
    let mut state = store.state();
    // As many failures as would end the first start of an engine.
    let often = |state: &EngineState| match state {
        EngineState::Starting { n_restarts } => *n_restarts >= 6,
        EngineState::Failed { .. } => true,
        _ => false,
    };
    let now = state.wait_for(often).await.unwrap().clone();
    assert!(matches!(now, EngineState::Starting { .. }), "{now:?}");
    std::fs::remove_file(&full).unwrap();
    store.ready().await.unwrap();
    store.client("").query("SELECT 1").execute().await.unwrap();
    store.stop().await;
}

#[tokio::test]
async fn a_second_engine_on_a_folder_says_it_is_in_use() {
    let test = TestStore::start().await;
    let mut config = engine_config(test.dir.path());
    config.stop_timeout = Duration::from_secs(1);
    let second = EmbeddedStore::start(config).await.unwrap();
    match second.ready().await {
        Err(EmbeddedError::Failed(reason @ EngineFailure::Locked { .. })) => {
            let folder = test.dir.path().to_str().unwrap();
            assert!(reason.to_string().contains(folder), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    second.stop().await;
    // The first engine still has its socket.
    assert_eq!(test.count("SELECT toUInt64(1)").await, 1);
    test.store.stop().await;
}

/// A server that was killed leaves its engine behind for a moment, and its successor starts at once.
#[tokio::test]
async fn an_engine_waits_for_the_one_before_to_let_go_of_the_folder() {
    let test = TestStore::start().await;
    let second = EmbeddedStore::start(engine_config(test.dir.path()))
        .await
        .unwrap();
    let mut state = second.state();
    let met_the_lock = |state: &EngineState| matches!(state, EngineState::Starting { n_restarts } if *n_restarts > 0);
    let _ = state.wait_for(met_the_lock).await.unwrap();
    test.store.stop().await;
    second.ready().await.unwrap();
    second.stop().await;
}

#[tokio::test]
async fn a_missing_or_foreign_library_ends_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let program = || ChildProgram::for_tests().unwrap();
    let missing = dir.path().join("libchdb.so");
    // This library loads, but is not the engine.
    let foreign = "libc.so.6";
    for library in [missing.to_str().unwrap(), foreign] {
        let config = EmbeddedConfig::new(dir.path().join("data"), library, program());
        let store = EmbeddedStore::start(config).await.unwrap();
        match store.ready().await {
            Err(EmbeddedError::Failed(EngineFailure::Library { reason })) => {
                assert!(reason.contains(library), "{reason}");
            }
            other => panic!("{library}: {other:?}"),
        }
        store.stop().await;
    }
}

#[tokio::test]
async fn a_program_that_cannot_start_ends_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let missing = ChildProgram::new(dir.path().join("no-program"), ["x"]);
    let store = EmbeddedStore::start(EmbeddedConfig::new(dir.path(), chdb_library(), missing));
    let failed = store.await.unwrap().ready().await.unwrap_err();
    assert!(
        matches!(failed, EmbeddedError::Failed(EngineFailure::Program { .. })),
        "{failed:?}"
    );
}

/// A child that always ends at once is not restarted for ever.
#[tokio::test]
async fn a_child_that_never_gets_ready_ends_with_what_it_said() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo out of luck >&2; exit 3";
    let unlucky = ChildProgram::new("/bin/sh", ["-c", script]);
    let store = EmbeddedStore::start(EmbeddedConfig::new(dir.path(), chdb_library(), unlucky));
    match store.await.unwrap().ready().await {
        Err(EmbeddedError::Failed(EngineFailure::Start { reason, stderr })) => {
            assert!(stderr.contains("out of luck"), "{stderr}");
            assert!(reason.contains('3'), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_child_that_hangs_at_its_start_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let hangs = ChildProgram::new("/bin/sh", ["-c", "exec sleep 1000"]);
    let mut config = EmbeddedConfig::new(dir.path(), chdb_library(), hangs);
    config.start_timeout = Duration::from_millis(20);
    let store = EmbeddedStore::start(config);
    let failed = store.await.unwrap().ready().await.unwrap_err().to_string();
    assert!(failed.contains("no answer"), "{failed}");
}

/// Runs as the parent process in the next test: starts an engine, prints its pid, and waits to be killed.
#[tokio::test]
async fn parent_to_be_killed() {
    let Some(dir) = std::env::var_os("EPWATCH_TEST_PARENT_DIR") else {
        return;
    };
    let store = ready(engine_config(dir.as_ref())).await;
    std::fs::write(
        std::path::Path::new(&dir).join("pid"),
        pid_of(&store).unwrap().to_string(),
    )
    .unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn the_child_ends_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifecycle::parent_to_be_killed"])
        .env("EPWATCH_TEST_PARENT_DIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid_file = dir.path().join("pid");
    let pid = until("the parent's engine is ready", || async {
        std::fs::read_to_string(&pid_file).ok()?.parse::<u32>().ok()
    })
    .await;
    assert!(is_running(pid));
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("the child ends", || async {
        (!is_running(pid)).then_some(())
    })
    .await;
    // The engine's lock ended with the engine.
    let next = ready(engine_config(dir.path())).await;
    next.stop().await;
}

/// Without an explicit file the library reads ./config.xml in the folder where it starts.
#[tokio::test]
async fn a_config_file_in_the_working_folder_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let poison = "<clickhouse><max_table_size_to_drop>12345</max_table_size_to_drop></clickhouse>";
    std::fs::write(dir.path().join("config.xml"), poison).unwrap();
    let exe = std::env::current_exe().unwrap();
    // The child starts in the folder that contains such a file.
    let script = "cd \"$1\" && EPWATCH_ENGINE_CHILD=1 exec \"$2\" --exact engine_child_entry \
                  --nocapture --test-threads=1";
    let args = [
        "-c".into(),
        script.into(),
        "sh".into(),
        dir.path().into(),
        exe.into_os_string(),
    ];
    let program = ChildProgram::new("/bin/sh", args);
    let data = dir.path().join("data");
    let store = ready(EmbeddedConfig::new(&data, chdb_library(), program)).await;
    let client = store.client("");
    let setting = |name: &'static str| {
        let client = client.clone();
        let sql = "SELECT value FROM system.server_settings WHERE name = ?";
        async move {
            client
                .query(sql)
                .bind(name)
                .fetch_one::<String>()
                .await
                .unwrap()
        }
    };
    assert_ne!(setting("max_table_size_to_drop").await, "12345");
    // Ours was read.
    assert_eq!(setting("mark_cache_size").await, "67108864");
    store.stop().await;
}

#[tokio::test]
async fn limits_and_durability_are_set() {
    let test = TestStore::start().await;
    let value = |sql: &'static str| async {
        test.client()
            .query(sql)
            .fetch_one::<String>()
            .await
            .unwrap()
    };
    let server = "SELECT value FROM system.server_settings WHERE name = 'max_server_memory_usage'";
    assert_eq!(value(server).await, (1_u64 << 30).to_string());
    let query = "SELECT toString(getSetting('max_memory_usage'))";
    assert_eq!(value(query).await, ((1_u64 << 30) / 4 * 3).to_string());
    let fsync = "SELECT value FROM system.merge_tree_settings WHERE name = 'fsync_after_insert'";
    assert_eq!(value(fsync).await, "1");
    // The size of a column's buffers while parts are merged, which matters because reports have 150 columns.
    let buffers = "SELECT value FROM system.merge_tree_settings \
        WHERE name = 'min_columns_to_activate_adaptive_write_buffer'";
    assert_eq!(value(buffers).await, "16");
    assert_eq!(
        value("SELECT toString(getSetting('async_insert'))").await,
        "false"
    );
    assert_eq!(value("SELECT timezone()").await, "UTC");
    let hungry = "SELECT length(groupArray(number)) FROM numbers(1000000000)";
    let text = test.refusal(hungry).await;
    assert!(text.contains("Code: 241"), "{text}");
    test.store.stop().await;
}

/// The kernel's death signal follows the thread that spawned the child.
#[tokio::test]
async fn the_child_outlives_the_thread_that_asked_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = engine_config(dir.path());
    let asked = std::thread::spawn(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(ready(config))
    });
    let store = asked.join().unwrap();
    for _ in 0..20 {
        store.client("").query("SELECT 1").execute().await.unwrap();
    }
    assert!(matches!(
        *store.state().borrow(),
        EngineState::Ready { n_restarts: 0, .. }
    ));
    store.stop().await;
}

/// Ctrl-C in a terminal goes to the whole process group; the engine ends at the order of its parent.
#[tokio::test]
async fn a_terminal_s_ctrl_c_does_not_reach_the_child() {
    let test = TestStore::start().await;
    let pid = pid_of(&test.store).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name in brackets: state, parent, process group.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let group = fields.split_whitespace().nth(2).unwrap();
    assert_eq!(group, pid.to_string());
    test.store.stop().await;
}

#[tokio::test]
async fn the_socket_is_for_this_user_alone() {
    let test = TestStore::start().await;
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(test.store.socket()), 0o600);
    assert_eq!(mode(test.store.socket().parent().unwrap()), 0o700);
    test.store.stop().await;
}

#[tokio::test]
async fn a_foreign_file_at_the_socket_path_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("mine.txt");
    std::fs::write(&socket, "precious").unwrap();
    let mut config = engine_config(&dir.path().join("data"));
    config.socket = Some(socket.clone());
    let store = EmbeddedStore::start(config).await.unwrap();
    let failed = store.ready().await.unwrap_err().to_string();
    assert!(failed.contains("mine.txt"), "{failed}");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}
