# Everyday commands. Each is a plain line that works without `just`.

# The quick look before a commit.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# All tests, with the real engine, ONNX Runtime and QNN; fetches them once.
test *ARGS:
    .ci/tests {{ARGS}}

# The whole product on this machine, with a simulated fleet and real sessions.
demo *ARGS:
    cargo run --release -- demo {{ARGS}}

# What receiving and writing cost, per CPU-second of the server; `just bench --json` for programs.
bench *ARGS:
    cargo bench -p epwatch-collector --bench ingest -- {{ARGS}}

# What judging a window costs, with the store's queries; fills its own stores first, which takes long.
evaluate *ARGS:
    cargo bench -p epwatch-detector --bench evaluate -- {{ARGS}}

# What the SDK costs its host: times, allocations, memory, wire bytes; `just cost --json` for programs.
cost *ARGS:
    cargo bench -p epwatch-sdk --bench cost -- {{ARGS}}

# Detection held against labelled fleets; writes docs/detection.md. 300 families for the bounds; a run that
# was broken off goes on (figures of each fleet: target/detection.jsonl, to be deleted when the detector changes).
detection FIRST_SEED="500000" FAMILIES="40" *ARGS="":
    cargo run --release -p epwatch-detection -- {{FIRST_SEED}} {{FAMILIES}} --results target/detection.jsonl --write docs/detection.md {{ARGS}}

# Kills collectors and their store 1,000 times under load, and counts what is lost or counted twice;
# `just faults --kills 100 --servers serve --json` for less, another set-up, or programs.
faults *ARGS:
    cargo build --release -p epwatch -p epwatch-faults
    target/release/epwatch-faults {{ARGS}}

# Fuzzes what strangers send, each target for a minute; `just fuzz connection` for one, `just fuzz 600` for longer.
fuzz *ARGS:
    tests/fuzz/run {{ARGS}}

# Lines of the product and of tests, crates, executables, config keys, empty docs.
size:
    tests/size.py

# Third-party crates that a build of one member compiles again; none, or `src/features/Cargo.toml` lacks them.
features *MEMBERS:
    tests/features.py {{MEMBERS}}

# Rust code of the messages, made again from `proto/epwatch/v1`; `just generate --check` only compares.
generate *ARGS:
    cargo run --manifest-path proto/generate/Cargo.toml -- {{ARGS}}

# Documentation, with broken links denied.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Licences, sources and banned crates (needs cargo-deny).
deny:
    cargo deny check bans licenses sources

# What the runtimes are and where they lie; fetches what is missing.
engines:
    cargo run -- engines fetch

# What CI runs, and what it shortens or leaves out, in full: CONTRIBUTING.md lists it. Needs Java.
nightly:
    EPWATCH_NIGHTLY=1 bash .ci/run

# What CI runs, on a machine that may have nothing but Rust.
ci:
    bash .ci/run
