//! Converts a log from UTF-16 to UTF-8: PowerShell writes UTF-16 with `adb logcat -d > log.txt`.

use std::io::{self, BufRead, BufReader, Read};

/// Returns the input as UTF-8. UTF-16 is recognised by its byte order mark, or by a zero in the first or second byte.
pub(super) fn as_utf8(input: impl Read + 'static) -> io::Result<Box<dyn Read>> {
    let mut input = BufReader::new(input);
    let (skip, is_little) = match input.fill_buf()? {
        [0xff, 0xfe, ..] => (2, Some(true)),
        [0xfe, 0xff, ..] => (2, Some(false)),
        [0xef, 0xbb, 0xbf, ..] => (3, None),
        [first, 0, third, 0, ..] if *first != 0 && *third != 0 => (0, Some(true)),
        [0, second, 0, fourth, ..] if *second != 0 && *fourth != 0 => (0, Some(false)),
        _ => (0, None),
    };
    input.consume(skip);
    Ok(match is_little {
        None => Box::new(input),
        Some(is_little) => Box::new(Utf16 {
            input,
            is_little,
            held: None,
            out: Vec::new(),
            at: 0,
        }),
    })
}

struct Utf16<R> {
    input: BufReader<R>,
    is_little: bool,
    /// The first half of a surrogate pair.
    held: Option<u16>,
    /// Converted bytes; the part from `at` on was not yet read.
    out: Vec<u8>,
    at: usize,
}

impl<R: Read> Utf16<R> {
    /// Returns the next code unit; `None` at the end, where half a unit is dropped.
    fn unit(&mut self) -> io::Result<Option<u16>> {
        let mut bytes = [0; 2];
        for byte in &mut bytes {
            match self.input.fill_buf()? {
                [] => return Ok(None),
                [next, ..] => *byte = *next,
            }
            self.input.consume(1);
        }
        Ok(Some(match self.is_little {
            true => u16::from_le_bytes(bytes),
            false => u16::from_be_bytes(bytes),
        }))
    }

    fn fill(&mut self) -> io::Result<()> {
        (self.at, self.out) = (0, Vec::new());
        while self.out.len() < 4096 {
            let Some(unit) = self.unit()? else {
                break;
            };
            let held = self.held.take();
            if (0xd800..0xdc00).contains(&unit) {
                self.held = Some(unit);
            }
            let units = held.into_iter().chain(self.held.is_none().then_some(unit));
            for c in char::decode_utf16(units) {
                let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
                self.out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.out.len() {
            self.fill()?;
        }
        let n = to.len().min(self.out.len() - self.at);
        to[..n].copy_from_slice(&self.out[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: Vec<u8>, expected: &str) {
        let mut text = String::new();
        let input = io::Cursor::new(bytes);
        as_utf8(input).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, expected);
    }

    #[test]
    fn every_encoding_of_a_log_is_read() {
        let text = "V onnxruntime: é 🙂\r\n";
        let units = || text.encode_utf16();
        let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
        check([vec![0xff, 0xfe], little.clone()].concat(), text);
        check([vec![0xfe, 0xff], big.clone()].concat(), text);
        check(little.clone(), text);
        check(big, text);
        check([vec![0xef, 0xbb, 0xbf], text.into()].concat(), text);
        check(text.into(), text);
        // The input ends with half a surrogate pair and half a unit.
        let half = [little, vec![0x3d, 0xd8, 0x41, 0, 0x41]].concat();
        check(half, &format!("{text}\u{fffd}A"));
        check(Vec::new(), "");
    }
}
