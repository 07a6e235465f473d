#!/usr/bin/env python3
"""Prints how large the house is. Usage: tests/size.py [FOLDER], a checkout; `just size`.

Product: Rust below the `src` folders of the crates that ship, and of the simulated fleet; without what only tests compile
(`#[cfg(test)]` modules, in the file or in files of their own). Generated: what a program wrote, below a folder
`generated`; in no other figure. Tests: `#[cfg(test)]` modules, `tests/`, `benches/` and `examples/` of those crates, all
other crates below `tests/`, and `proto`'s feature `samples`. A line is doc (`///`, `//!`), comment, blank or code. An
empty doc is one line of one or two words. A room is a crate's folder; its figure is its product's lines of code. The core
is all rooms but those in LATER, which moved in after it.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

CFG_TEST = re.compile(r'#\[cfg\((?:test|feature = "samples"|all\(test\b.*|any\(test\b.*)\)\]')
MODULE = re.compile(r"\s*(?:pub(?:\(\w+\))? )?mod (\w+)\s*([;{])")
EMPTY_DOC = re.compile(r"\s*/// \w+( \w+)?\.$")
KEY = re.compile(r"(?:# ?)?([a-z_0-9]+) = ")
# The page, the dashboards, the gate, the SDK for C, the JVM and Python, the models' manifests, and their subcommands.
LATER = [
    *("dashboards/page", "dashboards/grafana", "detector/gate", "sdk/ffi", "sdk/python", "detector/manifest"),
    *("src/gate", "src/incident_order.rs", "src/logs.rs", "src/query.rs", "src/manifest.rs", "src/page.rs", "src/verify.rs"),
]
# The command links this crate for `demo` and `load`.
LINKED = Path("tests/fleet/src")
# The code that reads and assembles windows. All its lines count, including tests.
READING = ("detector/src/read", "detector/src/judge/window")
SECTION = re.compile(r"(?:# ?)?\[+([a-z_.]+)\]+\s*$")


def kind(line):
    text = line.strip()
    if not text:
        return "blank"
    if text.startswith(("///", "//!")):
        return "doc"
    return "comment" if text.startswith("//") else "code"


def split(path, lines):
    """The lines of the product, the lines of tests, and the files of modules that only tests compile."""
    product, tests, files = [], [], set()
    at = 0
    while at < len(lines):
        if not CFG_TEST.match(lines[at].strip()):
            product.append(lines[at])
            at += 1
            continue
        end = at + 1
        while lines[end].strip().startswith(("#[", "//")) or not re.search(r"[;{},]\s*$", lines[end]):
            end += 1
        if module := MODULE.match(lines[end]):
            folder = path.parent if path.stem in ("mod", "lib", "main") else path.with_suffix("")
            if module[2] == ";":
                files |= {folder / f"{module[1]}.rs", folder / module[1]}
        # The item ends at the closing brace with the same indentation as its first line.
        if lines[end].rstrip().endswith("{"):
            indent = re.match(r"\s*", lines[end])[0]
            while not re.match(indent + r"[})]", lines[end]):
                end += 1
        tests += lines[at : end + 1]
        at = end + 1
    return product, tests, files


def rust(root):
    listed = subprocess.check_output(["git", "ls-files", "*.rs"], cwd=root, text=True).split()
    product, tests, generated, only_tests = {}, {}, {}, set()
    for name in listed:
        path = Path(name)
        lines = (root / path).read_text().splitlines()
        if "generated" in path.parts[:-1]:
            generated[path] = lines
            continue
        of_tests = "src" not in path.parts or not {"tests", "benches"}.isdisjoint(path.parts[:-1])
        if of_tests and not path.is_relative_to(LINKED):
            tests[path] = lines
            continue
        product[path], tests[path], files = split(path, lines)
        only_tests |= files
    for path in list(product):
        if not only_tests.isdisjoint([path, *path.parents]):
            tests[path] += product.pop(path)
    return product, tests, generated


def executables(root):
    metadata = subprocess.check_output(["cargo", "metadata", "--no-deps", "--format-version=1"], cwd=root)
    return sum(target["test"] for package in json.loads(metadata)["packages"] for target in package["targets"])


def config_keys(root):
    section, keys = "", set()
    for line in (root / "epwatch.example.toml").read_text().splitlines():
        if match := SECTION.match(line):
            section = match[1]
        elif match := KEY.match(line):
            keys.add(f"{section}.{match[1]}")
    return len(keys)


def kinds(files):
    return Counter(kind(line) for lines in files.values() for line in lines)


def rooms(product):
    """The product's lines of code by room, and of those in LATER."""
    by_room, later = Counter(), 0
    for path, lines in product.items():
        code = sum(kind(line) == "code" for line in lines)
        folder, _, _ = f"/{path}".rpartition("/src/")
        by_room[folder.strip("/") or "src"] += code
        if any(path.is_relative_to(room) for room in LATER):
            later += code
    return by_room, later


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    if not (root / ".git").exists() or not (root / "Cargo.lock").exists():
        sys.exit(f"size.py: {root} is not the root of a checkout of epwatch; give its path: tests/size.py FOLDER")
    product, tests, generated = rust(root)
    of_product, of_tests = kinds(product), kinds(tests)
    by_room, later = rooms(product)
    everything = [line for lines in [*product.values(), *tests.values()] for line in lines]
    reading = [path for path in {**product, **tests} if any(path.is_relative_to(room) for room in READING)]
    lock = tomllib.loads((root / "Cargo.lock").read_text())
    figures = {
        "product: files": len(product),
        "product: lines of code": of_product["code"],
        "product: of it the core": of_product["code"] - later,
        "product: lines of doc": of_product["doc"],
        "product: lines of comment": of_product["comment"],
        "reading room: all lines": sum(len((root / path).read_text().splitlines()) for path in reading),
        "tests: lines of code": of_tests["code"],
        "generated: lines of code": kinds(generated)["code"],
        "crates in the lock": len(lock["package"]),
        "executables of a test run": executables(root),
        "config keys": config_keys(root),
        "empty docs": sum(bool(EMPTY_DOC.match(line)) for line in everything),
    }
    for name, figure in figures.items():
        print(f"{name:<28}{figure:>8,}")
    print("\nproduct by room")
    for room, code in by_room.most_common():
        print(f"  {room:<26}{code:>8,}")


if __name__ == "__main__":
    main()
