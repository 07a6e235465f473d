//! The extension module `epwatch._native`: epwatch's SDK for the Python package in `epwatch/`.
//!
//! Each class turns Python's values into a call of the SDK and its answer into a value or an exception. The module
//! never imports onnxruntime and never holds one of its sessions: the package reads the placement, and passes it as a
//! list. The package decides what is observed, and when. No panic reaches Python.

mod config;
mod failure;
mod graph;
mod self_test;
mod session;
mod shape;
mod side_car;
mod watch;

/// The SDK below the package.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::failure::{ConfigError, FolderError, UploadError};
    #[pymodule_export]
    use crate::graph::are_in_place;
    #[pymodule_export]
    use crate::self_test::SelfTest;
    #[pymodule_export]
    use crate::session::{Session, is_off_cpu, is_on_npu, now, own_name};
    #[pymodule_export]
    use crate::side_car::SideCar;
    #[pymodule_export]
    use crate::watch::{Plan, Watch};

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
