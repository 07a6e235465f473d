#!/usr/bin/env python3
"""Builds the Python wheel. Usage: wheel.py OUT_DIR [LIBRARY]

Without LIBRARY cargo builds the extension first (profile `mobile`: small and stripped). With WHEEL_TARGET, for example
aarch64-unknown-linux-gnu.2.17, `cargo-zigbuild` does (`pip install cargo-zigbuild ziglang`), for another processor or an
older glibc than this machine's. The wheel's tag is what the library needs: the newest version of glibc that it names. The
same commit and toolchain give the same bytes in any folder. It is pip's build backend, too (PEP 517). `.ci/dist` sets
WHEEL_VERSION, and WHEEL_LICENCES, a file with the licences of the crates in the extension.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Zip files begin in 1980.
DAY = (1980, 2, 1, 0, 0, 0)
MACHINES = {62: "x86_64", 183: "aarch64"}
SUMMARY = "Watches onnxruntime sessions: where each node runs, and how long a run takes."
DESCRIPTION = """# epwatch

ONNX Runtime sends what an NPU refuses to the CPU, silently. epwatch finds that in the field: this package watches
sessions of `onnxruntime.InferenceSession`, and reports to an epwatch collector. Nothing is recorded, written or sent
without consent.
"""
# pytest imports the module of such an entry point at its start, wherever the wheel is installed.
PLUGIN = "epwatch_pytest"
ENTRY_POINTS = f"[pytest11]\nepwatch = {PLUGIN}\n"
CLASSIFIERS = (
    "Framework :: Pytest",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: Implementation :: CPython",
    "Programming Language :: Rust",
    "Typing :: Typed",
)


def version():
    given = os.environ.get("WHEEL_VERSION")
    return given or re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


def built():
    """Builds the extension, and returns its path."""
    target = os.environ.get("WHEEL_TARGET")
    command = ["cargo-zigbuild", "rustc", "--target", target] if target else [os.environ.get("CARGO", "cargo"), "rustc"]
    # With the rlib of the tests, which the manifest names, too, cargo makes no link-time optimisation.
    cargo = [*command, "--locked", "--profile", "mobile", "-p", "epwatch-python", "--lib", "--crate-type", "cdylib"]
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # Panic messages name source files. Without this mapping they would show paths of the build machine.
    cargo_home = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
    paths = {ROOT: "/epwatch", cargo_home: "/cargo", folder: "/target"}
    environment = dict(os.environ)
    for variable, option in (("RUSTFLAGS", "--remap-path-prefix"), ("CFLAGS", "-ffile-prefix-map")):
        mapped = [f"{option}={path}={name}" for path, name in paths.items()]
        environment[variable] = " ".join([os.environ.get(variable, ""), *mapped]).strip()
    subprocess.run(cargo, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
    # Only zigbuild understands the glibc version at the target's end.
    triple = re.sub(r"\.\d+\.\d+$", "", target) if target else ""
    return folder / triple / "mobile" / "libepwatch_native.so"


def platform(library):
    """Returns the tag of an ELF library, by its processor and by the newest symbol version of glibc that it names."""
    if library[:4] != b"\x7fELF":
        sys.exit("the library is not a shared library of Linux")
    machine = MACHINES.get(int.from_bytes(library[18:20], "little"))
    if machine is None:
        sys.exit(f"expected a library for {' or '.join(MACHINES.values())}")
    glibc = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", library)]
    if not glibc:
        sys.exit("the library names no version of glibc: no wheel for musl is made here")
    return f"manylinux_2_{max(17, *glibc)}_{machine}"


def packed(out, library):
    """Writes the wheel, and returns its name."""
    library = Path(library).read_bytes()
    tag = f"cp39-abi3-{platform(library)}"
    info = f"epwatch-{version()}.dist-info"
    licences = {"LICENSE": ROOT / "LICENSE"}
    if "WHEEL_LICENCES" in os.environ:
        licences["THIRD-PARTY-LICENCES.txt"] = Path(os.environ["WHEEL_LICENCES"])
    metadata = [
        "Metadata-Version: 2.4",
        "Name: epwatch",
        f"Version: {version()}",
        f"Summary: {SUMMARY}",
        "License-Expression: Apache-2.0",
        *(f"License-File: {name}" for name in licences),
        "Requires-Python: >=3.9",
        *(f"Classifier: {classifier}" for classifier in CLASSIFIERS),
        "Description-Content-Type: text/markdown",
        "",
        DESCRIPTION,
    ]
    files = {f"epwatch/{path.name}": path.read_bytes() for path in sorted((HERE / "epwatch").iterdir()) if path.is_file()}
    files[f"{PLUGIN}.py"] = (HERE / f"{PLUGIN}.py").read_bytes()
    files["epwatch/_native.abi3.so"] = library
    files[f"{info}/METADATA"] = "\n".join(metadata).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: epwatch\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    for name, path in licences.items():
        files[f"{info}/licenses/{name}"] = path.read_bytes()

    def line(name, content):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(content)}\n"

    record = "".join(line(name, content) for name, content in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    name = f"epwatch-{version()}-{tag}.whl"
    Path(out).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(Path(out) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, compresslevel=9)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """As pip calls it (PEP 517)."""
    return packed(wheel_directory, built())


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = sys.argv[1]
    name = packed(out, sys.argv[2] if len(sys.argv) == 3 else built())
    print(f"{out}/{name} {os.path.getsize(os.path.join(out, name))} bytes")


if __name__ == "__main__":
    main()
