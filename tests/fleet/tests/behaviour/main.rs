//! What a fleet does, seen from outside: one module a behaviour.

#[cfg(test)]
mod cost;
#[cfg(test)]
mod live;
#[cfg(test)]
#[cfg(test)]
mod virtual_time;
