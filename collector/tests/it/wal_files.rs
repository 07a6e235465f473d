//! Files of the WAL are damaged, lost or replaced by old ones, and every acknowledged report still counts once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use epwatch_proto::v1;

use crate::support::{
    COUNTED, ROWS, Store, check_metrics, config, connect, report, start, start_alone, store_all,
};

/// The length of each of the file's two records.
const CHECKPOINT_BYTES: usize = 56;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    None,
    Flips(&'static [usize]),
    Removed,
}

fn reports(first: u64, n: u64) -> Vec<v1::Report> {
    (first..first + n)
        .map(|sequence| report(1, 1, sequence))
        .collect()
}

fn finding(name: &str) -> String {
    format!("epwatch_collector_wal_repairs_total{{finding=\"{name}\"}} 1")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_or_lost_checkpoint_counts_no_report_twice() {
    let store = Store::start().await;
    let path = store.dir.path().join("wal/checkpoint");
    let mut n_sent = 0;
    let damages = [
        Damage::None,
        Damage::Flips(&[3]),
        Damage::Flips(&[24]),
        Damage::Flips(&[CHECKPOINT_BYTES - 1]),
        // Both records.
        Damage::Flips(&[24, CHECKPOINT_BYTES + 24]),
        Damage::Removed,
    ];
    for damage in damages {
        let collector = start(&store, "wal").await;
        for _ in 0..3 {
            store_all(&mut connect(&collector).await, &reports(n_sent + 1, 20)).await;
            n_sent += 20;
            store.eventually(ROWS, n_sent).await;
        }
        collector.stop().await;
        match damage {
            Damage::None => {}
            Damage::Flips(places) => {
                let mut bytes = fs::read(&path).unwrap();
                places.iter().for_each(|at| bytes[*at] ^= 1);
                fs::write(&path, bytes).unwrap();
            }
            Damage::Removed => fs::remove_file(&path).unwrap(),
        }
        if damage != Damage::None {
            let collector = start(&store, "wal").await;
            check_metrics(&collector, &[&finding("checkpoint_lost")]);
            store_all(&mut connect(&collector).await, &reports(n_sent + 1, 5)).await;
            n_sent += 5;
            store.eventually(ROWS, n_sent).await;
            collector.stop().await;
        }
        assert_eq!(store.number(ROWS).await, n_sent, "{damage:?}");
        store.check_views_show(n_sent).await;
    }
    store.engine.stop().await;
}

/// A snapshot of the WAL's folder is restored after the store got later records.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_the_folder_is_set_aside() {
    let store = Store::start().await;
    let (wal, copy) = (store.dir.path().join("wal"), store.dir.path().join("copy"));
    let mut n_sent = 0;
    for _ in 0..2 {
        let collector = start(&store, "wal").await;
        store_all(&mut connect(&collector).await, &reports(n_sent + 1, 20)).await;
        n_sent += 20;
        collector.stop().await;
        if n_sent == 20 {
            copy_folder(&wal, &copy);
        }
    }
    fs::remove_dir_all(&wal).unwrap();
    fs::rename(&copy, &wal).unwrap();
    let collector = start(&store, "wal").await;
    check_metrics(&collector, &[&finding("older_than_store")]);
    store_all(&mut connect(&collector).await, &reports(n_sent + 1, 20)).await;
    store.eventually(COUNTED, n_sent + 20).await;
    collector.stop().await;
    let collector = start(&store, "wal").await;
    check_metrics(
        &collector,
        &["epwatch_collector_wal_repairs_total{finding=\"older_than_store\"} 0"],
    );
    store.check_views_show(n_sent + 20).await;
    assert_eq!(store.number(ROWS).await, n_sent + 20);
    store.end(collector).await;
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_user_reads_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let wal = dir.path().join("wal");
    fs::create_dir(&wal).unwrap();
    fs::set_permissions(&wal, fs::Permissions::from_mode(0o755)).unwrap();
    let collector = start_alone(&dir, config(&wal)).await;
    store_all(&mut connect(&collector).await, &reports(1, 1)).await;
    collector.stop().await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&wal), 0o700);
    let mut n_files = 0;
    for file in fs::read_dir(&wal).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        n_files += 1;
    }
    assert!(n_files >= 5, "{n_files}");
}
