//! Standard error of a session's process: its end, and the last node that was passed to QNN.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum number of bytes of the end that are kept.
const TAIL_BYTES: usize = 400;
/// Longest line that is searched for a node.
const LINE_BYTES: usize = 4 << 10;
/// Text that QNN's EP writes at VERBOSE before it hands a node to QNN.
const TOLD: &str = "QNN node builder is trying to add node. Onnx node name: [";

/// The kept parts of a process's standard error.
#[derive(Debug, Default)]
pub(super) struct Said {
    tail: Vec<u8>,
    line: Vec<u8>,
    /// Name and op type of the last node that was passed to QNN.
    pub(super) last_node: Option<(String, String)>,
}

impl Said {
    /// Reads standard error to its end, in bounded memory.
    pub(super) async fn of(mut stderr: impl AsyncRead + Unpin) -> std::io::Result<Self> {
        let (mut said, mut bytes) = (Self::default(), vec![0; 16 << 10]);
        loop {
            match stderr.read(&mut bytes).await? {
                0 => break,
                n => said.push(&bytes[..n]),
            }
        }
        said.end_line();
        Ok(said)
    }

    /// The last words.
    pub(super) fn tail(&self) -> String {
        String::from_utf8_lossy(&self.tail).trim().to_owned()
    }

    fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                _ if self.line.len() < LINE_BYTES => self.line.push(byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        let node = line.split_once(TOLD).and_then(|(_, rest)| {
            let (name, rest) = rest.split_once("] onnx node type: [")?;
            let (op_type, _) = rest.rsplit_once(']')?;
            Some((name.to_owned(), op_type.to_owned()))
        });
        self.last_node = node.or(self.last_node.take());
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_node_and_the_last_words_are_kept() {
        let line = |name: &str, op: &str| {
            format!(
                "2026 [V:onnxruntime:, base_op_builder.cc:40 AddToModelBuilder] {TOLD}{name}] onnx node type: [{op}].\n"
            )
        };
        let text = format!(
            "{}{}{}",
            line("a[0]", "Relu"),
            line("", "STFT"),
            "x".repeat(9000)
        );
        let said = Said::of(text.as_bytes()).await.unwrap();
        assert_eq!(said.last_node, Some((String::new(), "STFT".to_owned())));
        assert_eq!(said.tail(), "x".repeat(TAIL_BYTES));
        let said = Said::of(line("a[0]", "Relu").as_bytes()).await.unwrap();
        assert_eq!(said.last_node.unwrap().0, "a[0]");
    }
}
