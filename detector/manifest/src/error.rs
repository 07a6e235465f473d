/// A model whose MACs cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("failed to read the model")]
    Io(#[from] std::io::Error),
    /// Weights are in a file next to the model, which a copy elsewhere would not find.
    #[error("the model has external data: write the copy into the folder of the model")]
    ExternalData,
    /// The bytes are not an ONNX model.
    #[error("the file is not a whole ONNX model: {expected} expected at byte {at}")]
    NotOnnx {
        /// Offset in the file.
        at: u64,
        /// The missing piece.
        expected: &'static str,
    },
    /// One file of 2 GB or more, which protobuf does not read.
    #[error(
        "the file has {bytes} bytes, and neither protobuf nor ONNX Runtime loads one of 2 GB or more; save the weights as \
         external data (onnx.save with save_as_external_data=True)"
    )]
    Over2Gb {
        /// Size of the file.
        bytes: u64,
    },
    /// Another format.
    #[error("the file is {what}")]
    OtherFormat {
        /// The format, with the way out.
        what: &'static str,
    },
    /// The graph is larger than any real one.
    #[error("the model's graph, without weights, takes more than {} MiB", .most_bytes >> 20)]
    TooLarge {
        /// The bound.
        most_bytes: usize,
    },
    /// An input's shape is not in the model.
    #[error(
        "input {input} has the shape [{shape}]; give it a fixed one with --shape {input}={example}"
    )]
    Symbolic {
        /// Name of the input.
        input: String,
        /// The shape in the model.
        shape: String,
        /// The same shape with 1 for each dimension that is not fixed.
        example: String,
    },
    /// An input that is not a tensor, so that no shape can be given for it.
    #[error("input {input} is {kind}, which has no fixed shape; its MACs cannot be counted")]
    NoTensor {
        /// Name of the input.
        input: String,
        /// For example `a sequence`.
        kind: &'static str,
    },
    /// A size for a dimension that no input has.
    #[error("--dim {name}={size} does not fit the model: {expected}")]
    WrongDim {
        /// Name of the dimension.
        name: String,
        /// The size given.
        size: u64,
        /// The dimensions in the model.
        expected: String,
    },
    /// A shape for an input that the model does not have, or that does not fit it.
    #[error("--shape {input}={given} does not fit the model: {expected}")]
    WrongShape {
        /// Name of the input.
        input: String,
        /// The shape given.
        given: String,
        /// The inputs or shape in the model.
        expected: String,
    },
    /// A model without a counting rule.
    #[error("the MACs of {op_type} {node} are not known: {why}")]
    Uncountable {
        /// Name of the node, or of its first output.
        node: String,
        /// For example `Conv`.
        op_type: String,
        /// Reason and way out.
        why: &'static str,
    },
}
