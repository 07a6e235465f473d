//! Fetches and verifies the runtimes that epwatch runs but does not ship.
