//! The set-up of a fresh machine. Scripts install what is missing, and a command lists it. Completions, the manual and
//! the signature of a release are checked too.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use epwatch_runtimes::tool;
use tempfile::TempDir;

use crate::support::{check_ends, check_fails, check_succeeds, docs, epwatch};

const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");

/// A `PATH` that has only these programs of the machine, and scripts that stand in for others.
struct Machine(TempDir);

impl Machine {
    fn with(programs: &[&str]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        let basic = ["bash", "cut", "dirname", "env", "head", "sed", "sort"];
        for name in basic.iter().chain(programs) {
            let mut which = Command::new("sh");
            let path = check_succeeds(which.args(["-c", &format!("command -v {name}")]));
            symlink(path.trim(), machine.path().join(name)).unwrap();
        }
        machine.script("cargo", "echo cargo 1.92.0");
        machine
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::write(&path, format!("#!/usr/bin/env bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn setup(&self, words: &str) -> Command {
        let mut setup = Command::new(Path::new(CHECKOUT).join(".ci/setup"));
        setup.args(words.split_whitespace());
        setup.env_clear().env("PATH", self.path());
        setup
    }
}

#[test]
fn what_is_missing_is_said_with_its_reason_and_installed_at_once() {
    let machine = Machine::with(&["tar", "cat", "chmod"]);
    machine.script("id", "echo 0");
    let program = "printf '#!/usr/bin/env bash\\n' > \"$here/$name\"; chmod +x \"$here/$name\"";
    machine.script(
        "apt-get",
        &format!(
            "here={0}; echo \"$*\" >> $here/said\n\
             [ \"$1\" != install ] || for name in npm python3 curl; do {program}; done",
            machine.path().display()
        ),
    );
    let (_, stderr) = check_ends(&mut machine.setup("run"), 0);
    for line in [
        "missing: npm, which fetches ClickHouse as a library (no npm)",
        "missing: python3-pip, which fetches ONNX Runtime and QNN (no python:pip)",
        "installing npm python3 python3-pip curl",
    ] {
        assert!(stderr.contains(line), "no {line} in {stderr}");
    }
    let said = fs::read_to_string(machine.path().join("said")).unwrap();
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("update"), "{said:?}");
    assert!(
        said[1].ends_with("npm python3 python3-pip curl"),
        "{said:?}"
    );
    // A second run finds nothing missing.
    check_ends(&mut machine.setup("run"), 0);
    let again = fs::read_to_string(machine.path().join("said")).unwrap();
    assert_eq!(again.lines().count(), 2, "{again}");
}

#[test]
fn a_user_who_may_not_install_is_told_what_an_administrator_types() {
    let machine = Machine::with(&["tar"]);
    machine.script("id", "echo 1000");
    machine.script("apt-get", "exit 9");
    let line = "  apt-get install --no-install-recommends npm python3 python3-pip curl\n";
    check_fails(&mut machine.setup("run"), 3, line);
    check_fails(&mut machine.setup("run"), 3, "--only-what-is-here");
    let (rows, _) = check_ends(&mut machine.setup("--only-what-is-here run"), 0);
    let checks: Vec<&str> = rows
        .lines()
        .filter_map(|row| row.split(' ').next())
        .collect();
    assert_eq!(checks, ["npm", "python3", "python:pip", "curl"]);
}

#[test]
fn a_rust_that_is_missing_or_too_old_is_said_before_anything_is_installed() {
    let machine = Machine::with(&[]);
    machine.script("cargo", "echo cargo 1.63.0");
    check_fails(
        &mut machine.setup("run"),
        3,
        "cargo is 1.63.0, and 1.92 or newer is needed",
    );
    machine.script("cargo", "exit 1");
    check_fails(&mut machine.setup("run"), 3, "cargo is without a toolchain");
    fs::remove_file(machine.path().join("cargo")).unwrap();
    check_fails(
        &mut machine.setup("run"),
        3,
        "install 1.92 or newer from https://rustup.rs",
    );
}

/// Runs a script that has `.ci/tests` as the module `tests`, and this executable in `sys.argv[2]`.
fn with_ci_tests(script: &str) -> String {
    const LOAD: &str = r#"
import importlib.machinery, importlib.util, os, sys
loader = importlib.machinery.SourceFileLoader("tests", sys.argv[1])
tests = importlib.util.module_from_spec(importlib.util.spec_from_loader("tests", loader))
sys.dont_write_bytecode = True
loader.exec_module(tests)
"#;
    let mut python = tool("python3");
    python.args(["-B", "-c", &format!("{LOAD}{script}")]);
    python.arg(Path::new(CHECKOUT).join(".ci/tests"));
    check_succeeds(python.arg(std::env::current_exe().unwrap()))
}

/// The jobs together run each module of this executable. The modules that are listed to start first exist.
#[test]
fn a_long_executable_is_split_into_all_of_its_modules() {
    const SCRIPT: &str = r#"
modules = tests.modules(tests.ROOT, sys.argv[2])
absent = {*tests.SPLIT["tests/it/main.rs"], *tests.THREADS} - set(modules)
sources = [source for source in tests.SPLIT if not (tests.ROOT / source).exists()]
print(sum(map(len, modules.values())), absent, sources)
"#;
    let this = std::env::current_exe().unwrap();
    let listed = check_succeeds(Command::new(this).arg("--list"));
    let n = listed.lines().filter(|l| l.ends_with(": test")).count();
    assert_eq!(with_ci_tests(SCRIPT).trim(), format!("{n} set() []"));
}

/// Tests that lack a program are left out, but a test that fails for another reason is not.
#[test]
fn only_tests_that_lack_a_program_are_left_out() {
    const SCRIPT: &str = r#"
os.environ["MISSING_PROGRAMS"] = "chromium,google-chrome chromium opens every page\npython:pip python3-pip fetches"
output = """
running 4 tests
failures:

---- page::opens stdout ----
thread 'page::opens' panicked at tests/it/browser.rs:1:1:
`chromium` is not installed: apt-get install chromium

---- engines::fetches stdout ----

failures:

---- another::executable stdout ----
failed to fetch x: `npm`, `pip` are not installed; install them

failures:
    another::executable

---- page::counts stdout ----
assertion failed: `chromium` opened no page

---- gate::signs stdout ----
`openssl` is not installed: apt-get install openssl

failures:
    page::opens
    engines::fetches
    page::counts
    gate::signs

test result: FAILED. 0 passed; 4 failed
"""
print(tests.left_out(output, tests.missing_programs()))
"#;
    let said = with_ci_tests(SCRIPT);
    let expected = "([('chromium', 'page::opens'), ('python3-pip', 'engines::fetches')], 2)";
    assert_eq!(said.trim(), expected);
}

/// In a bare root, missing programs were once named one by one, each after a download.
#[test]
fn the_command_alone_names_all_that_is_missing_before_it_fetches() {
    let empty = tempfile::tempdir().unwrap();
    for words in ["engines fetch", "demo"] {
        let cache = tempfile::tempdir().unwrap();
        let mut command = epwatch(words);
        command
            .env("PATH", empty.path())
            .env("EPWATCH_CACHE", cache.path());
        let line = "`npm`, `python3`, `pip`, `tar` are not installed; install them (Debian, Ubuntu: \
                    `apt-get install npm python3 python3-pip tar`";
        check_fails(&mut command, 3, line);
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "{words}");
    }
}

/// Writes the completions of a shell into a file.
fn completions(shell: &str, folder: &Path) -> PathBuf {
    let path = folder.join(format!("epwatch.{shell}"));
    fs::write(
        &path,
        check_succeeds(&mut epwatch(&format!("completions {shell}"))),
    )
    .unwrap();
    path
}

#[test]
fn completions_load_in_bash_zsh_and_fish() {
    let folder = tempfile::tempdir().unwrap();
    let run = |shell: &str, flags: &[&str], script: &str| {
        let mut command = tool(shell);
        command.args(flags).args(["-c", script]);
        command
            .env("HOME", folder.path())
            .current_dir(folder.path());
        let (stdout, stderr) = check_ends(&mut command, 0);
        assert_eq!(stderr, "", "{shell}");
        stdout
    };
    for shell in ["bash", "zsh", "fish"] {
        completions(shell, folder.path());
    }
    let bash = "source epwatch.bash; COMP_WORDS=(epwatch ga) COMP_CWORD=1; _epwatch epwatch ga epwatch; \
                echo \"${COMPREPLY[*]}\"; COMP_WORDS=(epwatch gate --so) COMP_CWORD=2; _epwatch epwatch --so gate; \
                echo \"${COMPREPLY[*]}\"";
    assert_eq!(
        run("bash", &["--norc", "--noprofile"], bash),
        "gate\n--soc\n"
    );
    let zsh = "autoload -U compinit; compinit -D -u; source ./epwatch.zsh; echo $_comps[epwatch]; whence -w _epwatch";
    assert_eq!(run("zsh", &["-f"], zsh), "_epwatch\n_epwatch: function\n");
    let fish = "source epwatch.fish; complete -C 'epwatch ga'; complete -C 'epwatch gate --so'";
    let said = run("fish", &["--no-config"], fish);
    assert!(
        said.contains("gate\t") && said.contains("--soc\t"),
        "{said}"
    );
}

/// Without `XDG_DATA_DIRS`, as on a server, fish does not read /usr/local/share.
#[test]
fn completions_are_installed_where_shells_look_for_them() {
    let home = tempfile::tempdir().unwrap();
    let install = docs("install.md");
    let target = |file: &str| {
        let mut lines = install.lines();
        let start = format!("install -D -m 0644 completions/{file} ");
        let target = lines.find_map(|line| line.strip_prefix(&start)).unwrap();
        Path::new(target).parent().unwrap().to_owned()
    };
    for (shell, flags, folders, file) in [
        ("zsh", "-fc", "print -l $fpath", "_epwatch"),
        (
            "fish",
            "-c",
            "string join \\n $fish_complete_path",
            "epwatch.fish",
        ),
    ] {
        let mut command = tool(shell);
        command.env_remove("XDG_DATA_DIRS").env("HOME", home.path());
        command.args([flags, folders]);
        let (folders, _) = check_ends(&mut command, 0);
        let folder = target(file);
        assert!(
            folders.lines().any(|line| Path::new(line) == folder),
            "{shell} reads {folders}, and {folder:?} is none of them"
        );
    }
}

#[test]
fn every_command_has_a_manual_page_that_man_formats() {
    let folder = tempfile::tempdir().unwrap();
    let man1 = folder.path().join("share/man/man1");
    check_succeeds(epwatch("man").arg(&man1));
    let page = |name: &str| {
        let mut man = tool("man");
        man.args(["--warnings", "-l"])
            .arg(man1.join(format!("{name}.1")));
        let (text, warnings) = check_ends(man.env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8"), 0);
        assert_eq!(warnings, "", "{name}");
        text
    };
    for name in [
        "epwatch",
        "epwatch-gate",
        "epwatch-serve",
        "epwatch-engines-fetch",
    ] {
        let text = page(name);
        assert!(text.contains("NAME") && text.contains("OPTIONS"), "{text}");
        let footer = text.trim_end().lines().last().unwrap();
        assert!(footer.contains("epwatch 0."), "{name}: {footer}");
    }
    assert!(page("epwatch-gate").contains("--soc"), "gate");
    // Commands that only this program starts are not for people.
    let is_hidden = |name: &str| !man1.join(format!("{name}.1")).exists();
    assert!(is_hidden("epwatch-engine-child") && is_hidden("epwatch-sign-release"));
}

/// A signature names the commit of the files, so uncommitted changes must be reported.
#[test]
fn what_is_not_committed_is_neither_packed_nor_signed_silently() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path(".ci")).unwrap();
    fs::copy(Path::new(CHECKOUT).join(".ci/dist"), path(".ci/dist")).unwrap();
    fs::write(path("Cargo.toml"), "version = \"0.1.0\"\n").unwrap();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(folder.path()).args(words);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{who}_NAME"), "test");
            git.env(format!("GIT_{who}_EMAIL"), "test@example.com");
        }
        check_succeeds(&mut git)
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "first"]);
    // Stands in for the next step, which only runs if nothing was refused.
    fs::write(path(".ci/setup"), "#!/bin/sh\necho set up\nexit 9\n").unwrap();
    fs::set_permissions(path(".ci/setup"), fs::Permissions::from_mode(0o755)).unwrap();
    let dist = |words: &str| {
        let mut dist = Command::new(path(".ci/dist"));
        dist.args(words.split_whitespace());
        dist
    };
    // A key in the folder is not a change.
    fs::write(path("release.pem"), "").unwrap();
    let key = format!("--key {}", path("release.pem").display());
    check_ends(&mut dist(&key), 9);
    fs::write(path("Cargo.toml"), "version = \"0.1.0\"\n#\n").unwrap();
    for words in ["", "x86_64", key.as_str()] {
        check_fails(&mut dist(words), 2, " M Cargo.toml\ncommit or undo it");
    }
    check_fails(
        &mut dist(&format!("--dirty {key}")),
        2,
        "--key signs a commit",
    );
    check_ends(&mut dist("--dirty"), 9);
}

#[test]
fn a_release_is_signed_and_no_evidence_of_a_gate() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let run = |words: &str| {
        let mut command = epwatch(words);
        command.current_dir(folder.path());
        command
    };
    for name in ["epwatch.tar.gz", "changed.tar.gz"] {
        fs::write(path(name), name).unwrap();
    }
    check_succeeds(&mut run("gate keygen --out release.pem"));
    let signed = check_succeeds(&mut run("sign-release --key release.pem epwatch.tar.gz"));
    fs::write(path("release.dsse.json"), signed).unwrap();
    let verify = "verify release.dsse.json --key release.pem.pub";
    let said = check_succeeds(&mut run(&format!("{verify} --file epwatch.tar.gz")));
    assert!(said.contains(" epwatch.tar.gz\n"), "{said}");
    check_fails(
        &mut run(&format!("{verify} --file epwatch.tar.gz changed.tar.gz")),
        1,
        "changed.tar.gz is not a file of this release",
    );
    check_fails(&mut run(verify), 2, "its predicate is of another kind");
    check_succeeds(&mut run("gate keygen --out other.pem"));
    let other = "verify release.dsse.json --key other.pem.pub --file epwatch.tar.gz";
    check_fails(&mut run(other), 1, "is not signed with the key");
}

/// A script stands in for the command, because this tests only the package.
#[test]
fn the_wheel_puts_the_command_among_the_scripts_and_is_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("binary"), "#!/bin/sh\necho epwatch of a wheel\n").unwrap();
    fs::write(path("licences"), "of others\n").unwrap();
    let mut wheels = Vec::new();
    for out in ["one", "two"] {
        fs::create_dir(path(out)).unwrap();
        let mut wheel = Command::new(Path::new(CHECKOUT).join(".ci/wheel"));
        wheel.arg(path("binary")).args(["x86_64", "2.17", "0.1.0"]);
        wheel.arg(path("licences")).arg(path(out));
        check_succeeds(wheel.env("SOURCE_DATE_EPOCH", "1790000000"));
        let name = "epwatch_cli-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl";
        wheels.push(path(out).join(name));
    }
    assert_eq!(fs::read(&wheels[0]).unwrap(), fs::read(&wheels[1]).unwrap());
    let mut pip = tool("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--target"]);
    check_succeeds(pip.arg(path("installed")).arg(&wheels[0]));
    let said = check_succeeds(&mut Command::new(path("installed/bin/epwatch")));
    assert_eq!(said, "epwatch of a wheel\n");
}
