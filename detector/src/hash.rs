//! Maps of devices and names. Judging hashes each device several times for each signal, and the
//! standard library's hasher was half of what that cost; this one is seeded anew in each map too, so
//! that nobody who makes up installations can choose which of them collide.

/// A map whose order says nothing.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A set whose order says nothing.
pub(crate) type HashSet<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;
