#!/usr/bin/env python3
"""Packs the Android library without Gradle. Usage: aar.py CLASSES_DIR OUT_DIR ABI=libepwatch.so [ABI=...]

CLASSES_DIR is what `mvn -f modules.xml -Pandroid -Doutput=DIR test` compiled (DIR/classes). Writes `epwatch-VERSION.aar`,
`epwatch-workmanager-VERSION.aar` for apps with WorkManager, `epwatch-startup-VERSION.aar` for App Startup, and
`epwatch-ktx-VERSION.jar` for coroutines; to each the jar of its sources, a jar of documents, and a POM, as a Maven repository
takes them; whoever publishes them adds the POM's `url` and `scm`. The same inputs give the same bytes.
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
# By ABI: bits and machine in a library's ELF header.
ABIS = {"arm64-v8a": (64, 183), "armeabi-v7a": (32, 40), "x86_64": (64, 62)}
# Libraries of desktop Linux, which have other names on Android.
DESKTOP = (b"\0libc.so.6\0", b"\0libgcc_s.so.1\0", b"\0libc.musl")
SOURCES = ("src/main/kotlin", "src/android/kotlin")
WORKMANAGER_SOURCES = ("src/workmanager/java",)
STARTUP_SOURCES = ("src/startup/java",)
KTX_SOURCES = ("ktx/src/main/kotlin",)
WORKMANAGER_MANIFEST = '<?xml version="1.0" encoding="utf-8"?>\n<manifest package="dev.epwatch.workmanager" />\n'
POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.epwatch</groupId>
  <artifactId>{name}</artifactId>
  <version>{version}</version>
  <packaging>{packaging}</packaging>
  <name>{name}</name>
  <description>{description}</description>
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
{dependencies}  </dependencies>
</project>
"""
DEPENDENCY = """    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
{}    </dependency>
"""
DESCRIPTIONS = {
    "epwatch": "Where ONNX Runtime sessions of an Android app really run, and how long their runs take.",
    "epwatch-workmanager": "Uploads of epwatch by the app's WorkManager.",
    "epwatch-startup": "Starts epwatch by App Startup, configured in the manifest.",
    "epwatch-ktx": "Suspending calls and a flow of epwatch, for apps with coroutines.",
}


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


def of_pom(key, pom="pom.xml"):
    """A property of the POM that compiles the classes."""
    return re.search(rf"<{key}>(.*)</", (HERE / pom).read_text())[1]


def write_aar(path, manifest, classes, rules="", libraries=None):
    with zipfile.ZipFile(path, "w") as aar:
        put(aar, "AndroidManifest.xml", manifest)
        put(aar, "classes.jar", classes)
        put(aar, "R.txt", "")
        if rules:
            put(aar, "proguard.txt", rules)
        put(aar, "META-INF/com/android/build/gradle/aar-metadata.properties", METADATA)
        for abi in sorted(libraries or {}):
            put(aar, f"jni/{abi}/libepwatch.so", Path(libraries[abi]).read_bytes())


def write_beside(out, name, version, sources, dependencies, packaging="aar"):
    """The sources, documents and POM of an artifact."""
    (out / f"{name}-{version}-sources.jar").write_bytes(jar([HERE / folder for folder in sources]))
    guide = io.BytesIO()
    with zipfile.ZipFile(guide, "w") as archive:
        put(archive, "android.md", (HERE.parents[1] / "docs/android.md").read_bytes())
    (out / f"{name}-{version}-javadoc.jar").write_bytes(guide.getvalue())
    dependencies = "".join(DEPENDENCY.format(*dependency) for dependency in dependencies)
    pom = POM.format(name=name, packaging=packaging, description=DESCRIPTIONS[name], version=version, dependencies=dependencies)
    (out / f"{name}-{version}.pom").write_text(pom)


def check_library(abi, path):
    """Refuses what an app could not load: another machine's library, or one of a desktop."""
    try:
        library = Path(path).read_bytes()
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}")
    bits, machine = ABIS[abi]
    if library[:5] != b"\x7fELF" + bytes([bits // 32]) or int.from_bytes(library[16:18], "little") != 3:
        raise SystemExit(f"{path} is not a shared library of {bits} bits")
    if int.from_bytes(library[18:20], "little") != machine:
        raise SystemExit(f"{path} is for another machine than {abi}")
    if found := [name for name in DESKTOP if name in library]:
        name = found[0].strip(b"\0").decode()
        raise SystemExit(
            f"{path} is a desktop's library: it needs {name}, which Android does not have. Build it with the NDK: "
            "cargo ndk -t " + abi + " rustc --profile mobile -p epwatch-ffi --lib --crate-type cdylib"
        )


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    classes, out = Path(sys.argv[1]), Path(sys.argv[2])
    of_workmanager, of_startup, of_ktx = (classes.parent / f"{part}/classes" for part in ("workmanager", "startup", "ktx"))
    libraries = dict(argument.split("=", 1) for argument in sys.argv[3:])
    if unknown := sorted(set(libraries) - set(ABIS)):
        raise SystemExit(f"unknown ABI {unknown[0]}: expected {' or '.join(ABIS)}")
    for abi, path in libraries.items():
        check_library(abi, path)
    for folder, file in (
        (classes, "AndroidPlatform"),
        (of_workmanager, "workmanager/UploadWorker"),
        (of_startup, "startup/EpwatchInitializer"),
        (of_ktx, "ktx/SuspendingKt"),
    ):
        if not (folder / f"dev/epwatch/{file}.class").is_file():
            raise SystemExit(f"{folder} has no {file}: compile with `mvn -f modules.xml -Pandroid` first")
    version = cargo("version")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"epwatch-{version}.aar"
    manifest = (HERE / "src/android/AndroidManifest.xml").read_bytes()
    packed = jar([classes], lambda file: file.startswith(("dev/epwatch/", "META-INF/")))
    write_aar(path, manifest, packed, (HERE / "consumer-rules.pro").read_bytes(), libraries)
    kotlin = ("org.jetbrains.kotlin", "kotlin-stdlib", of_pom("kotlin.version"), "")
    write_beside(out, "epwatch", version, SOURCES, [kotlin])

    write_aar(out / f"epwatch-workmanager-{version}.aar", WORKMANAGER_MANIFEST, jar([of_workmanager]))
    of_type = "      <type>aar</type>\n"
    epwatch = ("dev.epwatch", "epwatch", version, of_type)
    workmanager = ("androidx.work", "work-runtime", of_pom("workmanager.version"), of_type)
    write_beside(out, "epwatch-workmanager", version, WORKMANAGER_SOURCES, [epwatch, workmanager])

    startup_manifest = (HERE / "src/startup/AndroidManifest.xml").read_bytes()
    write_aar(out / f"epwatch-startup-{version}.aar", startup_manifest, jar([of_startup]))
    startup = ("androidx.startup", "startup-runtime", of_pom("startup.version"), of_type)
    write_beside(out, "epwatch-startup", version, STARTUP_SOURCES, [epwatch, startup])

    (out / f"epwatch-ktx-{version}.jar").write_bytes(jar([of_ktx]))
    coroutines = ("org.jetbrains.kotlinx", "kotlinx-coroutines-core-jvm", of_pom("coroutines.version", "ktx/pom.xml"), "")
    write_beside(out, "epwatch-ktx", version, KTX_SOURCES, [epwatch, coroutines], "jar")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
