//! The wire contract: messages, their parsed types, and the histogram codec.
