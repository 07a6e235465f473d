//! The migrations runner on the real engine.

use epwatch_store::{
    MigrateError, Migration, Migrations, StoreTarget, TemplateValues, migrate, pending, plan,
    schema_version,
};

use crate::support::TestStore;

const FIRST: Migration = Migration {
    version: 1,
    name: "tables",
    sql: "-- Two; statements?\nCREATE TABLE IF NOT EXISTS a ${on_cluster} (x UInt64, at \
          DateTime DEFAULT now(), t String \
          DEFAULT 'why; ?fields') ENGINE = ${replicated}MergeTree ORDER BY x\nTTL at + INTERVAL \
          ${days} DAY;\n\nCREATE OR REPLACE VIEW v AS SELECT x > 1 ? 'many' : 'few' AS much FROM a;\n",
};
const SECOND: Migration = Migration {
    version: 2,
    name: "column",
    sql: "ALTER TABLE a ADD COLUMN IF NOT EXISTS y UInt8",
};

fn of(files: &[Migration]) -> Migrations<'_> {
    Migrations {
        series: "epwatch-1",
        files,
    }
}

fn values() -> TemplateValues {
    let values = TemplateValues::new()
        .with("on_cluster", "")
        .with("replicated", "");
    values.with("days", 30)
}

fn target(test: &TestStore) -> StoreTarget {
    test.store.target("fresh")
}

fn versions(found: &[&Migration]) -> Vec<u32> {
    found.iter().map(|migration| migration.version).collect()
}

#[tokio::test]
async fn a_fresh_store_gets_everything_once() {
    let test = TestStore::start().await;
    let target = target(&test);
    let both = [FIRST, SECOND];
    assert_eq!(
        versions(&pending(&target, of(&both), &values()).await.unwrap()),
        [1, 2]
    );
    assert_eq!(
        migrate(&target, of(&[FIRST]), &values()).await.unwrap(),
        [1]
    );
    assert_eq!(
        versions(&pending(&target, of(&both), &values()).await.unwrap()),
        [2]
    );
    assert_eq!(migrate(&target, of(&both), &values()).await.unwrap(), [2]);
    assert_eq!(
        migrate(&target, of(&both), &values()).await.unwrap(),
        [0; 0]
    );
    let client = test.store.client("fresh");
    client
        .query("INSERT INTO a (x, y) VALUES (5, 1)")
        .execute()
        .await
        .unwrap();
    let row = client
        .query("SELECT t, much FROM a, v")
        .fetch_one::<(String, String)>();
    assert_eq!(
        row.await.unwrap(),
        ("why; ?fields".to_owned(), "many".to_owned())
    );
    test.store.stop().await;
}

#[tokio::test]
async fn two_runners_at_once_end_in_the_same_schema() {
    let test = TestStore::start().await;
    let target = target(&test);
    let both = [FIRST, SECOND];
    let values = values();
    let runs = (0..4).map(|_| migrate(&target, of(&both), &values));
    for done in futures::future::join_all(runs).await {
        done.unwrap();
    }
    assert!(
        pending(&target, of(&both), &values)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(schema_version(&target).await.unwrap(), 2);
    test.store.stop().await;
}

const THIRD: Migration = Migration {
    version: 3,
    name: "view",
    sql: "CREATE OR REPLACE VIEW v AS SELECT 'all' AS much -- not FROM a\n",
};

/// It repeats migrations that the other runners have already applied, and ends in the middle.
#[tokio::test]
async fn what_a_runner_that_came_late_and_died_put_back_is_mended() {
    let test = TestStore::start().await;
    let (target, values) = (target(&test), values());
    let all = [FIRST, SECOND, THIRD];
    migrate(&target, of(&all), &values).await.unwrap();
    let client = test.store.client("fresh");
    let planned = plan("fresh", of(&all), &values).unwrap();
    for statement in &planned.migrations[0].statements {
        client.query_raw(statement).execute().await.unwrap();
    }

    assert_eq!(
        versions(&pending(&target, of(&all), &values).await.unwrap()),
        [3]
    );
    assert_eq!(migrate(&target, of(&all), &values).await.unwrap(), [3]);
    let much = client.query("SELECT much FROM v UNION ALL SELECT 'end'");
    let much = much.fetch_all::<String>().await.unwrap();
    assert!(much.contains(&"all".to_owned()), "{much:?}");
    assert!(
        pending(&target, of(&all), &values)
            .await
            .unwrap()
            .is_empty()
    );
    test.store.stop().await;
}

#[tokio::test]
async fn a_changed_file_and_a_newer_store_are_refused() {
    let test = TestStore::start().await;
    let target = target(&test);
    migrate(&target, of(&[FIRST, SECOND]), &values())
        .await
        .unwrap();
    let changed = Migration {
        sql: "SELECT 1",
        ..FIRST
    };
    let error = migrate(&target, of(&[changed, SECOND]), &values())
        .await
        .unwrap_err();
    assert!(
        matches!(error, MigrateError::Changed { version: 1, .. }),
        "{error}"
    );
    let error = migrate(&target, of(&[FIRST]), &values()).await.unwrap_err();
    assert!(
        matches!(
            error,
            MigrateError::Newer {
                stored: 2,
                known: 1
            }
        ),
        "{error}"
    );
    // Values are no part of the checksum: a longer TTL is not another schema.
    migrate(&target, of(&[FIRST, SECOND]), &values().with("days", 60))
        .await
        .unwrap();
    test.store.stop().await;
}

/// The record of such a store has no series, whatever its versions are.
#[tokio::test]
async fn a_store_of_a_development_version_is_refused_and_left_as_it_is() {
    let test = TestStore::start().await;
    let target = target(&test);
    let server = test.store.client("");
    for sql in [
        "CREATE DATABASE fresh",
        "CREATE TABLE fresh.schema_migrations (version UInt32, name String, checksum String, applied_at \
         DateTime64(3, 'UTC') DEFAULT now64(3)) ENGINE = ReplacingMergeTree(applied_at) ORDER BY (version, checksum)",
        "INSERT INTO fresh.schema_migrations (version, name, checksum) VALUES (15, '0015_surplus_outlives', 'beef')",
    ] {
        server.query_raw(sql).execute().await.unwrap();
    }
    let refusals = [
        migrate(&target, of(&[FIRST]), &values()).await.unwrap_err(),
        pending(&target, of(&[FIRST]), &values()).await.unwrap_err(),
        schema_version(&target).await.unwrap_err(),
    ];
    for error in refusals {
        let text = error.to_string();
        assert!(matches!(error, MigrateError::Development), "{text}");
        assert!(text.contains("made by a development version"), "{text}");
        assert!(text.contains("start a new data_dir"), "{text}");
        assert!(!text.contains("upgrade epwatch") && !error.is_temporary());
    }
    let tables = server.query("SELECT name FROM system.tables WHERE database = 'fresh'");
    let tables = tables.fetch_all::<String>().await.unwrap();
    assert_eq!(tables, ["schema_migrations"]);
    test.store.stop().await;
}

#[tokio::test]
async fn a_refused_statement_is_named_and_not_recorded() {
    let test = TestStore::start().await;
    let target = target(&test);
    let broken = Migration {
        sql: "SELECT 1;\nALTER TABLE missing ADD COLUMN z UInt8",
        ..SECOND
    };
    let error = migrate(&target, of(&[FIRST, broken]), &values())
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("migration 2 (column), statement 2"), "{text}");
    assert!(!error.is_temporary());
    // Nothing was recorded, so the corrected file is applied.
    assert_eq!(
        migrate(&target, of(&[FIRST, SECOND]), &values())
            .await
            .unwrap(),
        [2]
    );
    test.store.stop().await;
}

#[tokio::test]
async fn a_store_that_is_away_is_a_temporary_error() {
    let dir = tempfile::tempdir().unwrap();
    let target = StoreTarget::unix(&dir.path().join("no.sock"), "d");
    let error = migrate(&target, of(&[FIRST]), &values()).await.unwrap_err();
    assert!(error.is_temporary(), "{error}");
}
