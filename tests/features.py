#!/usr/bin/env python3
"""Lists the third-party crates that a build of one member compiles again after a build of the workspace.

Each line is a crate whose features differ: name it in collector/features/Cargo.toml with the workspace's features.
Usage: tests/features.py [MEMBER...], all but proto and sdk without any. Exit code 1 if there is such a crate.
"""

import json
import subprocess
import sys

IN_APPS = {"epwatch-proto", "epwatch-sdk"}


def members():
    metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--no-deps", "--format-version=1"]))
    return sorted({package["name"] for package in metadata["packages"]} - IN_APPS)


def resolved(*which):
    """The third-party crates of a build, each with its features."""
    tree = ["cargo", "tree", "--no-dedupe", "--edges=normal,build,dev", "--prefix=none", "--format={p}|{f}", *which]
    with subprocess.Popen(tree, stdout=subprocess.PIPE, text=True) as process:
        found = {line.rstrip() for line in process.stdout if "|" in line and "(/" not in line}
    if process.returncode != 0:
        sys.exit(process.returncode)
    return found


def main():
    whole = resolved("--workspace")
    again = 0
    for member in sys.argv[1:] or members():
        for line in sorted(resolved("--package", member) - whole):
            crate, features = line.split("|")
            print(f"{member}: {crate} with {features or 'no features'}")
            again += 1
    sys.exit(1 if again else 0)


if __name__ == "__main__":
    main()
