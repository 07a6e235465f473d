//! Streams of this installation that ended. Reports name each of them until a report that named it is acknowledged.

use epwatch_proto::{EndedStream, StreamId, report::MAX_ENDED_STREAMS};

#[derive(Debug)]
struct Named {
    stream: EndedStream,
    /// Sequence of our first report that named the stream.
    since: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct EndedStreams(Vec<Named>);

impl EndedStreams {
    pub(super) fn add(&mut self, stream: EndedStream) {
        if self.ids().all(|known| known != stream.stream) {
            self.0.push(Named {
                stream,
                since: None,
            });
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.0.iter().map(|named| named.stream.stream)
    }

    pub(super) fn has_unnamed(&self) -> bool {
        self.0.iter().any(|named| named.since.is_none())
    }

    /// Streams that the report of this sequence names, as many as fit.
    pub(super) fn named_in(&mut self, sequence: u64) -> Vec<EndedStream> {
        let named = self.0.iter_mut().take(MAX_ENDED_STREAMS);
        named
            .map(|named| {
                named.since.get_or_insert(sequence);
                named.stream
            })
            .collect()
    }

    /// Forgets the streams that this report, or an earlier one, named.
    pub(super) fn acked(&mut self, sequence: u64) {
        self.0
            .retain(|named| named.since.is_none_or(|since| sequence < since));
    }
}
