//! Entries made by tiny local fetches: what `ensure` does when things go wrong.
