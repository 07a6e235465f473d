use clickhouse::error::Error;
use proptest::prelude::*;

use super::*;

columns!(Heads of Head, is_array: false, "" {
    app: &'a str,
    who: FixedBytes<16>,
    at: Millis,
    is_late: bool,
});

columns!(Sessions of Session, is_array: true, "session_" {
    uid: u64,
    share: Option<f32>,
    reasons: List<'a, &'a str>,
});

/// Reads an answer that comes in pieces of some length.
fn read(answer: &[u8], piece: usize) -> Result<Vec<String>, Error> {
    let mut decoder = BlockDecoder::default();
    let mut all = Vec::new();
    for piece in answer.chunks(piece) {
        decoder.push(piece);
        while let Some(block) = decoder.next()? {
            spell(&block, &mut all)?;
        }
    }
    decoder.finish()?;
    Ok(all)
}

fn spell(block: &Block, all: &mut Vec<String>) -> Result<(), Error> {
    let (heads, sessions) = (Heads::of(block)?, Sessions::of(block)?);
    for row in 0..block.n_rows() {
        let head = heads.rows(row).next().ok_or(Error::NotEnoughData)??;
        let (app, who, at, is_late) = (head.app, head.who.0[0], head.at.0, head.is_late);
        all.push(format!("{app} {who} {at} {is_late}"));
        for session in sessions.rows(row) {
            let session = session?;
            let reasons = session.reasons.collected();
            all.push(format!("{} {:?} {reasons:?}", session.uid, session.share));
        }
    }
    Ok(())
}

/// An answer as a server would write it.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Answer {
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push(u8::try_from(text.len()).unwrap());
        self.0.extend(text.as_bytes());
        self
    }

    fn column(&mut self, name: &str, data_type: &str) -> &mut Self {
        self.text(name).text(data_type)
    }

    fn numbers(&mut self, numbers: &[u64]) -> &mut Self {
        self.0.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }
}

/// An answer with two reports: one with two sessions, one without any.
fn two_reports() -> Vec<u8> {
    let mut answer = Answer::default();
    answer.bytes(&[7, 2]);
    answer.column("app", "LowCardinality(String)");
    answer.numbers(&[1, 0x600, 2]).text("camera").text("höhe");
    answer.numbers(&[2]).bytes(&[0, 1]);
    answer.column("who", "FixedString(16)");
    answer.bytes(&[1; 16]).bytes(&[2; 16]);
    answer.column("at", "DateTime64(3, 'UTC')").numbers(&[5, 6]);
    answer.column("is_late", "Bool").bytes(&[0, 1]);
    answer.column("session_uid", "Array(UInt64)");
    answer.numbers(&[2, 2, 10, 11]);
    answer.column("session_share", "Array(Nullable(Float32))");
    answer.numbers(&[2, 2]).bytes(&[0, 1]);
    answer.bytes(&0.5f32.to_le_bytes()).bytes(&[0; 4]);
    answer.column("session_reasons", "Array(Array(String))");
    answer.numbers(&[2, 2, 1, 3]);
    answer.text("a").text("b").text("");
    std::mem::take(&mut answer.0)
}

#[test]
fn rows_are_what_the_blocks_hold_however_they_come() {
    let expected = [
        "camera 1 5 false",
        "10 Some(0.5) [\"a\"]",
        "11 None [\"b\", \"\"]",
        "höhe 2 6 true",
    ];
    let block = two_reports();
    let answer = block.repeat(2);
    for piece in [1, 2, 7, 100, answer.len()] {
        let rows = read(&answer, piece).unwrap();
        assert_eq!(rows, [expected, expected].concat(), "pieces of {piece}");
    }
    assert!(read(&[], 1).unwrap().is_empty());
}

#[test]
fn columns_are_asked_for_by_their_whole_names() {
    assert_eq!(Heads::NAMES, ["app", "who", "at", "is_late"]);
    let sessions = ["session_uid", "session_share", "session_reasons"];
    assert_eq!(Sessions::NAMES, sessions);
}

#[test]
fn an_answer_that_ends_early_is_an_error() {
    let answer = two_reports();
    for end in 1..answer.len() {
        assert!(read(&answer[..end], 64).is_err(), "cut at {end}");
    }
}

#[test]
fn a_column_that_is_missing_or_of_another_type_or_length_is_named() {
    let answer = two_reports();
    let text = |from: &str, to: &str| {
        let at = answer
            .windows(from.len())
            .position(|w| w == from.as_bytes());
        let at = at.unwrap();
        let mut changed = answer.clone();
        changed[at..at + from.len()].copy_from_slice(to.as_bytes());
        read(&changed, 64).unwrap_err().to_string()
    };
    assert!(text("session_share", "session_shame").contains("\"session_share\" is missing"));
    assert!(text("Array(UInt64)", "Array(Float6)").contains("\"session_uid\": type Array(Float6)"));
    assert!(text("Bool", "Int8").contains("\"is_late\": type Int8"));
    // The type has the same width, but is another type.
    assert!(text("UInt64", "Time64").contains("\"session_uid\": type Array(Time64)"));
    assert!(text("LowCardinality(String)", "LowCardinality(Strin\u{e9}").contains("Strin\u{e9}"));
    let other_length = Answer::default()
        .column("session_uid", "Array(UInt64)")
        .numbers(&[2, 2])
        .0
        .clone();
    let at = answer
        .windows(other_length.len())
        .position(|w| w == other_length);
    let at = at.unwrap() + other_length.len() - 16;
    let mut changed = answer.clone();
    changed[at] = 1;
    let error = read(&changed, 64).unwrap_err().to_string();
    assert!(
        error.contains("\"session_share\" is of another length"),
        "{error}"
    );
}

proptest! {
    /// Changed bytes give an error or other rows, and take no more memory than the bytes that arrived.
    #[test]
    fn changed_bytes_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        piece in 1usize..64,
    ) {
        let mut answer = two_reports();
        for (at, to) in changes {
            let at = at.index(answer.len());
            answer[at] = to;
        }
        let _ = read(&answer, piece);
    }
}
