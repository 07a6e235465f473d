#!/usr/bin/env python3
"""Builds `libepwatch.so` for Android without an NDK, and checks it. Usage: link_check.py [--abi ABI] [--out DIR] [--report-only]

For machines where no NDK and no Android target of rustup can be had: Debian's rustc with the sources of std (packages
`rustc-web`, `cargo-web` and `rust-web-src`, of one version), and PyPI's `ziglang` 0.17 for the C compiler, the linker and
the sources of LLVM's unwinder. Shipping builds use the NDK, r28 or newer; this shows that the code compiles and links, and
what it weighs.

Two builds: `minimal` (std without its backtraces, no tables for frames that cannot unwind, derived `{:?}` without fields), which
the limits below are for, and `std` (std with its default features), which stands in for a stable toolchain and is printed next
to it. DIR/ABI/link.map says what the last build consists of.

Fails if the library is larger than its limits, imports a symbol that Android 7 (API 24) lacks (`lib*.sym`, by hand, after a
look at bionic's map files), exports anything but `epw_*` and `Java_*`, has segments that do not fit pages of 16 KB, or has
RELR relocations, which crash Android 7 and 8.
"""

import argparse
import gzip
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PAGE = 0x4000
# Limits of the build `minimal` on arm64-v8a. sentry-native 0.17.6 has 907,640 bytes, bugsnag 6.26.0 1,154,848.
MAX_BYTES, MAX_GZIP_BYTES = 1_000 * 1024, 520 * 1024
ABIS = {
    "arm64-v8a": {"rust": "aarch64-linux-android", "zig": "aarch64-linux-none", "musl": "aarch64", "emulation": "aarch64linux", "machine": 183},
    "armeabi-v7a": {"rust": "armv7-linux-androideabi", "zig": "arm-linux-none", "musl": "arm", "emulation": "armelf_linux_eabi", "machine": 40},
    "x86_64": {"rust": "x86_64-linux-android", "zig": "x86_64-linux-none", "musl": "x86_64", "emulation": "elf_x86_64", "machine": 62},
}
# Plain rounds of SHA-256, which hashes only a few names here. Unrolled rounds and rounds for each kind of processor
# take more bytes.
SHA2 = ['--cfg=sha2_backend="soft"', '--cfg=sha2_backend_soft="compact"']
VARIANTS = {
    "minimal": {
        "features": "panic-unwind,optimize_for_size,backtrace-trace-only",
        "rustc": ["-Zlocation-detail=none", "-Zfmt-debug=shallow", "-Cforce-unwind-tables=no", "-Zuse-sync-unwind=yes", *SHA2],
        "lld": ["--icf=all", "--pack-dyn-relocs=android"],
    },
    "std": {"features": "panic-unwind,backtrace", "rustc": SHA2, "lld": []},
}
START = """
extern void __cxa_finalize(void *);
__attribute__((visibility("hidden"))) void *__dso_handle = &__dso_handle;
__attribute__((destructor)) static void on_dlclose(void) { __cxa_finalize(&__dso_handle); }
/* C objects are compiled against musl's headers, whose errno has another name. */
extern int *__errno(void);
__attribute__((visibility("hidden"))) int *__errno_location(void) { return __errno(); }
"""


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


def script(path, text):
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


class Toolchain:
    """Stub libraries, start file, unwinder and wrappers around zig, in a folder."""

    def __init__(self, folder, abi):
        import ziglang

        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.abi = folder, ABIS[abi]
        self.zig = Path(ziglang.__file__).parent / "zig"
        self.env = os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
        lib = self.zig.parent / "lib"
        musl = [lib / "include", *(lib / "libc/include" / name for name in (
            f"{self.abi['musl']}-linux-musl", "generic-musl", f"{self.abi['musl']}-linux-any", "any-linux-any"))]
        self.headers = [part for path in musl for part in ("-isystem", str(path))]
        self.unwind = lib / "libunwind"

    def cc(self, *args):
        run(self.zig, "cc", "-target", self.abi["zig"], *args, env=self.env)

    def prepare(self):
        for name in ("c", "m", "dl", "log"):
            source = self.folder / f"{name}.s"
            lines = [line.split() for line in (HERE / f"lib{name}.sym").read_text().splitlines() if line.strip()]
            source.write_text("".join(
                f".data\n.globl {s[0]}\n.type {s[0]},%object\n.size {s[0]},8\n{s[0]}: .quad 0\n" if s[1:] == ["var"]
                else f".text\n.globl {s[0]}\n.type {s[0]},%function\n{s[0]}: .long 0\n" for s in lines))
            self.cc("-nostdlib", "-shared", f"-Wl,-soname,lib{name}.so", "-o", self.folder / f"lib{name}.so", source)
        start = self.folder / "start.c"
        start.write_text(START)
        plain = ["-fPIC", "-O2", "-nostdinc"]
        self.cc(*plain, "-c", start, "-o", self.folder / "start.o")
        flags = [*plain, *self.headers, "-I", self.unwind / "include", "-I", self.unwind / "src", "-DNDEBUG",
                 "-D_LIBUNWIND_IS_NATIVE_ONLY", "-D_LIBUNWIND_HIDE_SYMBOLS", "-D_LIBUNWIND_USE_DL_ITERATE_PHDR=1",
                 "-fvisibility=hidden", "-funwind-tables", "-fno-sanitize=all", "-fno-stack-protector"]
        objects = []
        # ARM of 32 bits has unwind tables of its own.
        sources = ["Unwind-EHABI.cpp"] if self.abi["machine"] == 40 else []
        sources += ["UnwindLevel1.c", "UnwindLevel1-gcc-ext.c", "UnwindRegistersRestore.S", "UnwindRegistersSave.S", "libunwind.cpp"]
        for name in sources:
            objects.append(self.folder / (name + ".o"))
            cpp = ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-nostdinc++"] if name.endswith("cpp") else []
            self.cc(*flags, *cpp, "-c", self.unwind / "src" / name, "-o", objects[-1])
        archive = self.folder / "libunwind.a"
        archive.unlink(missing_ok=True)
        run(self.zig, "ar", "rcs", archive, *objects, env=self.env)

    def wrappers(self, lld):
        """`cc` and `ar` for C of dependencies, and a linker driver: rustc passes it arguments of a cc, lld wants its own."""
        headers = " ".join(self.headers)
        script(self.folder / "cc", f"""
args=(); for arg in "$@"; do case $arg in --target=*) ;; *) args+=("$arg");; esac; done
exec {self.zig} cc -target {self.abi['zig']} -fPIC -fno-sanitize=all -fno-stack-protector -fno-asynchronous-unwind-tables \
    {headers} "${{args[@]}}"
""")
        script(self.folder / "ar", f'exec {self.zig} ar "$@"\n')
        script(self.folder / "link-clang", f"""
args=(-m {self.abi['emulation']} --eh-frame-hdr --gc-sections --no-rosegment -Map={self.folder}/link.map {' '.join(lld)})
for arg in "$@"; do case $arg in
    -Wl,*) IFS=, read -ra parts <<<"${{arg#-Wl,}}"; args+=("${{parts[@]}}");;
    -nodefaultlibs|-nostartfiles|-fPIC|-m64|-march=*) ;;
    *) args+=("$arg");;
esac; done
exec {self.zig} ld.lld "${{args[@]}}"
""")

    def build(self, variant, target_dir):
        chosen = VARIANTS[variant]
        self.wrappers(chosen["lld"])
        triple = self.abi["rust"]
        key = triple.replace("-", "_")
        flags = [f"-Lnative={self.folder}", f"-Clink-arg={self.folder / 'start.o'}",
                 f"-Clink-arg=-Wl,-z,max-page-size={PAGE},-z,defs", *chosen["rustc"]]
        env = self.env | {
            "RUSTC": "/usr/bin/rustc", "RUSTC_BOOTSTRAP": "1", "CARGO_TARGET_DIR": str(target_dir),
            f"CC_{key}": str(self.folder / "cc"), f"AR_{key}": str(self.folder / "ar"),
            f"CARGO_TARGET_{key.upper()}_LINKER": str(self.folder / "link-clang"),
            f"CARGO_TARGET_{key.upper()}_RUSTFLAGS": " ".join(flags),
        }
        # The type is named for link-time optimisation: see sdk/ffi/Cargo.toml.
        run("/usr/bin/cargo", "rustc", "--locked", "-p", "epwatch-ffi", "--lib", "--crate-type", "cdylib",
            "--profile", "mobile", "--target", triple,
            "-Zbuild-std=std,panic_unwind", f"-Zbuild-std-features={chosen['features']}", env=env, cwd=ROOT)
        return target_dir / triple / "mobile" / "libepwatch.so"


class Elf:
    """The parts of a little-endian shared library of 32 or 64 bits that the checks ask for."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        if self.bytes[:4] != b"\x7fELF" or self.bytes[4] not in (1, 2) or self.bytes[5] != 1:
            raise SystemExit(f"{path} is not a little-endian ELF file")
        self.is_64 = self.bytes[4] == 2
        self.machine = struct.unpack_from("<H", self.bytes, 18)[0]
        offset, = struct.unpack_from("<Q" if self.is_64 else "<I", self.bytes, 32 if self.is_64 else 28)
        size, count = struct.unpack_from("<HH", self.bytes, 54 if self.is_64 else 42)
        self.segments = [self.segment(offset + i * size) for i in range(count)]
        kind, _, at, _, _, length, _, _ = next(s for s in self.segments if s[0] == 2)
        entry = "<qQ" if self.is_64 else "<iI"
        size = struct.calcsize(entry)
        self.dynamic = [struct.unpack_from(entry, self.bytes, at + i * size) for i in range(length // size)]

    def segment(self, at):
        """Type, flags, offset, address, physical address, sizes in file and memory, alignment."""
        if self.is_64:
            return struct.unpack_from("<IIQQQQQQ", self.bytes, at)
        kind, offset, address, physical, in_file, in_memory, flags, align = struct.unpack_from("<8I", self.bytes, at)
        return kind, flags, offset, address, physical, in_file, in_memory, align

    def value(self, tag):
        return next((value for found, value in self.dynamic if found == tag), None)

    def at(self, address):
        segment = next(s for s in self.segments if s[0] == 1 and s[3] <= address < s[3] + s[5])
        return address - segment[3] + segment[2]

    def text(self, offset):
        start = self.at(self.value(5)) + offset
        return self.bytes[start:self.bytes.index(b"\0", start)].decode()

    def needed(self):
        return sorted(self.text(value) for tag, value in self.dynamic if tag == 1)

    def symbols(self):
        """The names of imports and of exports, from the dynamic symbol table, which the string table follows."""
        start, end = self.at(self.value(6)), self.at(self.value(5))
        # The version table, or the hash table's chains, give the number of symbols.
        chains = self.value(4)
        size = 24 if self.is_64 else 16
        count = struct.unpack_from("<II", self.bytes, self.at(chains))[1] if chains else (end - start) // size
        imports, exports = set(), set()
        for index in range(1, count):
            name, = struct.unpack_from("<I", self.bytes, start + index * size)
            section, = struct.unpack_from("<H", self.bytes, start + index * size + (6 if self.is_64 else 14))
            (exports if section else imports).add(self.text(name))
        return imports, exports

    def problems(self, machine):
        found = []
        if self.machine != machine:
            found.append(f"machine {self.machine} instead of {machine}")
        loads = [s for s in self.segments if s[0] == 1]
        for _, flags, offset, address, _, _, _, align in loads:
            if align < PAGE or align % PAGE or (address - offset) % PAGE:
                found.append(f"a segment at {address:#x} is aligned to {align:#x}, not to pages of 16 KB")
            if flags & 3 == 3:
                found.append(f"a segment at {address:#x} can be written and executed")
        for relro in (s for s in self.segments if s[0] == 0x6474E552):
            end = -(-(relro[3] + relro[6]) // PAGE) * PAGE
            if any(relro[3] + relro[6] <= s[3] < end for s in loads):
                found.append("the end of RELRO shares a page of 16 KB with a writable segment")
        if self.value(36) is not None:
            found.append("has RELR relocations")
        return found


def checked(path, abi):
    """Problems of a library, but for its size."""
    elf = Elf(path)
    problems = elf.problems(ABIS[abi]["machine"])
    allowed = {line.split()[0] for sym in HERE.glob("lib*.sym") for line in sym.read_text().splitlines() if line.strip()}
    imports, exports = elf.symbols()
    problems += [f"imports {name}, which is in no lib*.sym" for name in sorted(imports - allowed)]
    problems += [f"exports {name}" for name in sorted(exports) if not name.startswith(("epw_", "Java_dev_epwatch_", "JNI_On"))]
    extra = set(elf.needed()) - {"libc.so", "libdl.so", "libm.so", "liblog.so"}
    problems += [f"needs {name}" for name in sorted(extra)]
    return problems, len(imports), len(exports)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--abi", choices=ABIS, action="append", help="default: arm64-v8a")
    args.add_argument("--variant", choices=VARIANTS, action="append", help="default: both")
    args.add_argument("--out", type=Path, help="copies the minimal library to DIR/ABI/libepwatch.so")
    args.add_argument("--target-dir", type=Path, default=ROOT / "target/android")
    args.add_argument("--report-only", action="store_true", help="prints sizes above the limits without failing")
    args = args.parse_args()
    failed = False
    for abi in args.abi or ["arm64-v8a"]:
        # The folder's path is in the flags of each crate, so a folder for one run only would compile everything again.
        tools = Toolchain(args.target_dir / abi, abi)
        tools.prepare()
        for variant in args.variant or VARIANTS:
            library = tools.build(variant, args.target_dir / variant)
            size, packed = library.stat().st_size, len(gzip.compress(library.read_bytes(), 9, mtime=0))
            problems, n_imports, n_exports = checked(library, abi)
            if (variant, abi) == ("minimal", "arm64-v8a") and (size > MAX_BYTES or packed > MAX_GZIP_BYTES):
                text = f"larger than {MAX_BYTES} bytes, or {MAX_GZIP_BYTES} compressed"
                problems += [] if args.report_only else [text]
            print(f"{abi} {variant}: {size} bytes, {packed} compressed, {n_imports} imports, {n_exports} exports", flush=True)
            for problem in problems:
                failed = True
                print(f"{abi} {variant}: {problem}", file=sys.stderr)
            if args.out and variant == "minimal":
                (args.out / abi).mkdir(parents=True, exist_ok=True)
                shutil.copy(library, args.out / abi)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
