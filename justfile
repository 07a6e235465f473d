# Everyday commands. Each is a plain line that works without `just`.

# Format and lints, before a commit.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# All tests, with the real engine, ONNX Runtime and QNN; installs packages that are missing, and fetches those once.
test *ARGS:
    ./test {{ARGS}}

# The whole product on this machine, with a simulated fleet and real sessions.
demo *ARGS:
    ./demo {{ARGS}}

# Archives, wheels, checksums and SBOM for x86-64 and arm64 Linux, in target/dist/out; `--key FILE` signs them.
dist *ARGS:
    .ci/dist {{ARGS}}

# The wheels epwatch-cli and epwatch alone, `just wheel x86_64` for one processor.
wheel *ARGS:
    .ci/dist --wheels {{ARGS}}

# Pictures of the page and of three dashboards, over a simulated fleet in a Chromium; all of them are in target/screenshots.
screenshots:
    cargo test -p epwatch --test it page::every_page
    cp target/screenshots/readme-fleet.png docs/fleet.png
    cp target/screenshots/readme-cohort.png docs/cohort.png
    cp target/screenshots/grafana-fleet.png target/screenshots/grafana-incidents.png target/screenshots/grafana-model.png docs/

# Cost of receiving and writing, per CPU-second of the server; `just bench --json` for programs.
bench *ARGS:
    cargo bench -p epwatch-collector --bench ingest -- {{ARGS}}

# Times of every page and of every query of Grafana, over 1,000,000 reports of `load`, buckets open and closed.
look:
    cargo test --release -p epwatch --test it page_times::table -- --ignored --nocapture

# Cost of an evaluation, with the store's queries; fills its own stores first, which takes long.
evaluate *ARGS:
    cargo bench -p epwatch-detector --bench evaluate -- {{ARGS}}

# Cost of the SDK in its host: times, allocations, memory, wire bytes; `just cost --json` for programs.
cost *ARGS:
    cargo bench -p epwatch-sdk --bench cost -- {{ARGS}}

# Cost of a run in C, on a JVM and in Python, with a release build of the library. The JVM needs Maven.
costs:
    cargo test --release -p epwatch-ffi --test it costs -- --include-ignored --nocapture
    cargo test --release -p epwatch-python --test it costs -- --ignored --nocapture

# Evaluates the detector on labelled fleets and writes docs/detection.md; the bounds need 300 families. A run that
# was broken off continues from target/detection.jsonl; delete that file after a change of the detector.
detection FIRST_SEED="500000" FAMILIES="40" *ARGS="":
    cargo run --release -p epwatch-detection -- {{FIRST_SEED}} {{FAMILIES}} --results target/detection.jsonl --write docs/detection.md --rules $(git rev-parse --short HEAD) {{ARGS}}

# Kills collectors and their store 1,000 times under load, and counts reports that are lost or doubled;
# `just faults --kills 100 --servers serve --json` for a shorter run, another set-up, or programs.
faults *ARGS:
    cargo build --release -p epwatch -p epwatch-faults
    target/release/epwatch-faults {{ARGS}}

# Fuzzes the parsers of untrusted input, each target for a minute; `just fuzz connection` for one, `just fuzz 600` for longer.
fuzz *ARGS:
    tests/fuzz/run {{ARGS}}

# Every attack of tests/hostile/attacks.tsv, a line each; `just hostile checkpoint` for those with a word in their line.
hostile *ARGS:
    tests/hostile/run {{ARGS}}

# Tests of the rooms with `unsafe` under AddressSanitizer.
asan *ARGS:
    tests/asan {{ARGS}}

# Lines of the product, of tests and of generated code, crates, executables, config keys, empty docs.
size:
    tests/size.py

# Third-party crates that a build of one member compiles again. Add them to `collector/features/Cargo.toml`: the list should be empty.
features *MEMBERS:
    tests/features.py {{MEMBERS}}

# Rust code of the messages, made again from `proto/epwatch/v1`; `just generate --check` only compares.
generate *ARGS:
    cargo run --manifest-path proto/generate/Cargo.toml -- {{ARGS}}

# The Python wheel in `dist`. WHEEL_TARGET=aarch64-unknown-linux-gnu.2.17 with `pip install cargo-zigbuild ziglang` builds
# for another processor, or for an older glibc.
python-wheel OUT="dist":
    sdk/python/wheel.py {{OUT}}

# Documentation, with broken links denied.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Licences, sources and banned crates (needs cargo-deny).
deny:
    cargo deny check bans licenses sources

# Lists the runtimes and their folders; fetches those that are missing.
engines:
    cargo run -- engines fetch

# CI, with all that it shortens or leaves out (CONTRIBUTING.md lists it). Needs Java.
nightly:
    EPWATCH_NIGHTLY=1 bash .ci/run

# CI, on a machine that may have nothing but Rust.
ci:
    bash .ci/run
