//! The store's schema: migrations from files of the caller, on one server or on a cluster.

pub mod cluster;
pub mod migrate;
pub(crate) mod ttl;
