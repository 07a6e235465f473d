//! Watches ONNX Runtime sessions from inside the app: where nodes run, and how long a run takes.
