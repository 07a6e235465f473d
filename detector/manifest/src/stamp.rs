//! A copy of a model whose nodes all have names, so that placements and profiles can be attributed. Everything else is
//! copied byte by byte; nodes in bodies of loops and branches are not changed.

use std::{
    collections::HashSet,
    fs::File,
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
};

use epwatch_proto::wire::push_varint;

use crate::{
    ManifestError,
    wire::{WireReader, Wired},
};

/// Keys of the length-delimited fields `ModelProto.graph`, `GraphProto.node` and `NodeProto.name`.
const GRAPH: u8 = 7 << 3 | 2;
const NODE: u8 = 1 << 3 | 2;
const NAME: u8 = 3 << 3 | 2;

/// A node without a name, by its offsets in the file.
struct Unnamed {
    /// Where its field begins.
    at: u64,
    /// Where its message begins and ends.
    from: u64,
    until: u64,
    op_type: String,
}

/// The graph and its nodes, by their offsets in the file.
struct Places {
    /// Where the graph's field begins, its message begins and ends.
    graph: (u64, u64, u64),
    unnamed: Vec<Unnamed>,
    names: HashSet<String>,
}

/// Writes the copy, and returns how many nodes got a name.
///
/// # Errors
/// The file is not an ONNX model, or a file cannot be read or written.
pub fn stamp_names(model: &Path, copy: &Path) -> Result<usize, ManifestError> {
    let places = places(File::open(model)?)?;
    let mut from = File::open(model)?;
    let mut to = BufWriter::new(File::create(copy)?);
    let fields = places.name_fields();
    let (start, first, end) = places.graph;
    let sizes = places.unnamed.iter().zip(&fields);
    let grown: u64 = sizes.map(|(node, name)| node.grown(name)).sum();
    part(&mut from, &mut to, 0, start)?;
    to.write_all(&[GRAPH])?;
    to.write_all(&varint(end - first + grown))?;
    let mut at = first;
    for (node, name) in places.unnamed.iter().zip(&fields) {
        part(&mut from, &mut to, at, node.at)?;
        to.write_all(&[NODE])?;
        to.write_all(&varint(node.until - node.from + name.len() as u64))?;
        part(&mut from, &mut to, node.from, node.until)?;
        to.write_all(name)?;
        at = node.until;
    }
    let whole = from.seek(SeekFrom::End(0))?;
    part(&mut from, &mut to, at, whole)?;
    to.flush()?;
    Ok(fields.len())
}

impl Places {
    /// Returns the field `name` for each node without a name: its op with a number, unique in the graph.
    fn name_fields(&self) -> Vec<Vec<u8>> {
        let mut taken = self.names.clone();
        let mut number = 0_usize;
        let each = self.unnamed.iter().map(|node| {
            let name = loop {
                let name = format!("{}_{number}", node.op_type);
                number += 1;
                if taken.insert(name.clone()) {
                    break name;
                }
            };
            [&[NAME][..], &varint(name.len() as u64), name.as_bytes()].concat()
        });
        each.collect()
    }
}

impl Unnamed {
    /// Returns the number of bytes by which the graph grows.
    fn grown(&self, name: &[u8]) -> u64 {
        let before = self.until - self.at;
        let message = self.until - self.from + name.len() as u64;
        1 + varint(message).len() as u64 + message - before
    }
}

fn places(input: impl Read + Seek) -> Result<Places, ManifestError> {
    let mut wire = WireReader::new(input)?;
    let end = wire.len();
    let mut found = None;
    loop {
        let at = wire.at();
        let Some((number, wired)) = wire.field(end)? else {
            break;
        };
        match (number, wired) {
            (7, Wired::Until(until)) if found.is_none() => {
                let mut places = Places {
                    graph: (at, wire.at(), until),
                    unnamed: Vec::new(),
                    names: HashSet::new(),
                };
                nodes(&mut wire, until, &mut places)?;
                found = Some(places);
            }
            _ => wire.pass(wired)?,
        }
    }
    match found {
        Some(places) => Ok(places),
        None => wire.damaged("a graph"),
    }
}

fn nodes<R: Read + Seek>(
    wire: &mut WireReader<R>,
    end: u64,
    places: &mut Places,
) -> Result<(), ManifestError> {
    loop {
        let at = wire.at();
        let Some((number, wired)) = wire.field(end)? else {
            return Ok(());
        };
        let (1, Wired::Until(until)) = (number, wired) else {
            wire.pass(wired)?;
            continue;
        };
        let from = wire.at();
        let (mut name, mut op_type) = (String::new(), String::new());
        while let Some((number, wired)) = wire.field(until)? {
            match (number, wired) {
                (3, Wired::Until(until)) => name = wire.text(until)?,
                (4, Wired::Until(until)) => op_type = wire.text(until)?,
                _ => wire.pass(wired)?,
            }
        }
        wire.budget.spend(size_of::<Unnamed>() + 64)?;
        match name.is_empty() {
            true => places.unnamed.push(Unnamed {
                at,
                from,
                until,
                op_type,
            }),
            false => {
                places.names.insert(name);
            }
        }
    }
}

/// Copies a part of the file.
fn part(from: &mut File, to: &mut impl Write, at: u64, until: u64) -> Result<(), ManifestError> {
    from.seek(SeekFrom::Start(at))?;
    std::io::copy(&mut from.take(until - at), to)?;
    Ok(())
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_varint(&mut bytes, number);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest_of;

    /// Returns a length-delimited field of a message.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
    }

    fn node(name: &str, op: &str, input: &str, output: &str) -> Vec<u8> {
        let mut node = [field(1, input.as_bytes()), field(2, output.as_bytes())].concat();
        node.extend(field(4, op.as_bytes()));
        if !name.is_empty() {
            node.extend(field(3, name.as_bytes()));
        }
        field(1, &node)
    }

    #[test]
    fn names_are_added_and_the_rest_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (model, copy, again) = (
            dir.path().join("a"),
            dir.path().join("b"),
            dir.path().join("c"),
        );
        let nodes = [
            node("", "Relu", "x", "a"),
            node("Relu_0", "Relu", "a", "b"),
            node("", "Neg", "b", "y"),
        ];
        let graph = [
            nodes.concat(),
            field(2, b"graph"),
            field(12, &field(1, b"y")),
        ]
        .concat();
        let head = [vec![8, 8], field(2, b"maker")].concat();
        let bytes = [head.clone(), field(7, &graph), field(14, b"tail")].concat();
        std::fs::write(&model, &bytes).unwrap();
        assert_eq!(stamp_names(&model, &copy).unwrap(), 2);
        let stamped = std::fs::read(&copy).unwrap();
        let has = |words: &[u8]| stamped.windows(words.len()).any(|window| window == words);
        // The first free number is used, because `Relu_0` exists already.
        assert!(has(b"Relu_1") && has(b"Neg_2"), "{stamped:?}");
        assert!(stamped.starts_with(&head) && stamped.ends_with(&field(14, b"tail")));
        let (before, after) = (
            manifest_of(&model, &[]).unwrap(),
            manifest_of(&copy, &[]).unwrap(),
        );
        assert_eq!(before.ops, after.ops);
        assert_eq!(stamp_names(&copy, &again).unwrap(), 0);
        assert_eq!(std::fs::read(&again).unwrap(), stamped);
        // The error names the offset of the damage.
        std::fs::write(&model, &bytes[..bytes.len() - 20]).unwrap();
        assert!(stamp_names(&model, &copy).is_err());
    }
}
