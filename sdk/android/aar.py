#!/usr/bin/env python3
"""Packs the Android library without Gradle. Usage: aar.py CLASSES_DIR OUT_DIR ABI=libepwatch.so [ABI=...]

CLASSES_DIR is what `mvn -Pandroid -Doutput=DIR process-classes` compiled (DIR/classes). Writes `epwatch-VERSION.aar`, the jar
of its sources, a jar of documents, and a POM, as a Maven repository takes them; whoever publishes it adds the POM's `url` and
`scm`. The same inputs give the same bytes.
"""

import io
import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Zip files begin in 1980; Maven's plugins use this day for reproducible builds, too.
DAY = (1980, 2, 1, 0, 0, 0)
METADATA = "aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk=31\nminAndroidGradlePluginVersion=7.0.0\n"
ABIS = ("arm64-v8a", "x86_64")
SOURCES = ("src/main/kotlin", "src/android/kotlin")
POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.epwatch</groupId>
  <artifactId>epwatch</artifactId>
  <version>{version}</version>
  <packaging>aar</packaging>
  <name>epwatch</name>
  <description>Where ONNX Runtime sessions of an Android app really run, and how long their runs take.</description>
  <licenses>
    <license>
      <name>Apache-2.0</name>
      <url>https://www.apache.org/licenses/LICENSE-2.0.txt</url>
    </license>
  </licenses>
  <developers>
    <developer>
      <name>The epwatch authors</name>
    </developer>
  </developers>
  <scm>
    </scm>
  <dependencies>
    <dependency>
      <groupId>org.jetbrains.kotlin</groupId>
      <artifactId>kotlin-stdlib</artifactId>
      <version>{kotlin}</version>
    </dependency>
  </dependencies>
</project>
"""


def put(archive, name, content):
    info = zipfile.ZipInfo(name, DAY)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


def jar(folders, keep=lambda name: True):
    """The files below some folders, by name."""
    files = {str(path.relative_to(folder)): path for folder in folders for path in Path(folder).rglob("*") if path.is_file()}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(files):
            if keep(name):
                put(archive, name, files[name].read_bytes())
    return content.getvalue()


def cargo(key):
    """A text of the workspace's Cargo.toml."""
    text = (HERE.parents[1] / "Cargo.toml").read_text()
    return re.search(rf'^{key} = "(.*)"$', text, re.MULTILINE)[1]


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    classes, out = Path(sys.argv[1]), Path(sys.argv[2])
    libraries = dict(argument.split("=", 1) for argument in sys.argv[3:])
    if unknown := sorted(set(libraries) - set(ABIS)):
        raise SystemExit(f"unknown ABI {unknown[0]}: expected {' or '.join(ABIS)}")
    if not (classes / "dev/epwatch/AndroidPlatform.class").is_file():
        raise SystemExit(f"{classes} has no dev/epwatch/AndroidPlatform.class: compile with `mvn -Pandroid` first")
    version = cargo("version")
    kotlin = re.search(r"<kotlin.version>(.*)</", (HERE / "pom.xml").read_text())[1]
    out.mkdir(parents=True, exist_ok=True)
    name = f"epwatch-{version}"
    with zipfile.ZipFile(out / f"{name}.aar", "w") as aar:
        put(aar, "AndroidManifest.xml", (HERE / "src/android/AndroidManifest.xml").read_bytes())
        put(aar, "classes.jar", jar([classes], lambda file: file.startswith(("dev/epwatch/", "META-INF/"))))
        put(aar, "R.txt", "")
        put(aar, "proguard.txt", (HERE / "consumer-rules.pro").read_bytes())
        put(aar, "META-INF/com/android/build/gradle/aar-metadata.properties", METADATA)
        for abi in sorted(libraries):
            put(aar, f"jni/{abi}/libepwatch.so", Path(libraries[abi]).read_bytes())
    (out / f"{name}-sources.jar").write_bytes(jar([HERE / folder for folder in SOURCES]))
    guide = io.BytesIO()
    with zipfile.ZipFile(guide, "w") as archive:
        put(archive, "android.md", (HERE.parents[1] / "docs/android.md").read_bytes())
    (out / f"{name}-javadoc.jar").write_bytes(guide.getvalue())
    (out / f"{name}.pom").write_text(POM.format(version=version, kotlin=kotlin))
    print(out / f"{name}.aar", (out / f"{name}.aar").stat().st_size)


if __name__ == "__main__":
    main()
