//! The examples of the package run as they are.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use epwatch_strict_collector::Collector;

use crate::environment::{KEY, app, crate_file, environment, model, n_runs};

/// The launcher of a robot ends a node by SIGINT, a service manager by SIGTERM. The runs arrive with the next start.
#[test]
fn a_node_that_is_asked_to_end_keeps_all_its_runs() {
    for signal in ["INT", "TERM"] {
        let (folder, collector) = (tempfile::tempdir().unwrap(), Collector::start(KEY));
        let python = || app(&collector, environment(), folder.path());
        let mut node = python()
            .arg(crate_file("examples/ros_node.py"))
            .arg(model("mixed_v2.head32.onnx"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = BufReader::new(node.stdout.take().unwrap()).lines();
        let mut n_images = 0;
        for line in printed.map(Result::unwrap) {
            n_images += 1;
            assert!(line.starts_with(&format!("image {n_images}: ")), "{line}");
            if n_images == 20 {
                let number = node.id().to_string();
                let asked = Command::new("kill").args(["-s", signal, &number]).status();
                assert!(asked.unwrap().success());
            }
        }
        assert!(node.wait().unwrap().success(), "{signal}");
        assert!(n_images >= 20, "{n_images}");
        let next = python()
            .args(["-c", "import epwatch; epwatch.start(); epwatch.flush(300)"])
            .status();
        assert!(next.unwrap().success());
        let reports = collector.reports();
        assert_eq!(n_runs(&reports), n_images, "{signal}");
        let session = &reports[0].sessions[0];
        assert_eq!(
            (&*session.model.id, &*session.model.version),
            ("segmenter", "3")
        );
    }
}
