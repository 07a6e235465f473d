//! Hash maps keyed by devices and names. Judging hashes each device several times for each signal, and half of that
//! cost was the standard library's hasher. Like the standard hasher, this one has a new seed for each map, so that
//! forged installations cannot be chosen to collide.

/// A map without an order.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A set without an order.
pub(crate) type HashSet<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;
