"""The scripts in tools/."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.programs import module_of
from harness.tools import need_module

TOOLS = Path(__file__).resolve().parents[2] / "tools"
backend = module_of("tools/build_backend.py")


@pytest.fixture
def rust(tmp_path, monkeypatch):
    """Commands that tell these versions, in the directory of rustup and first in PATH."""

    def write(place, **versions):
        directory = tmp_path / place / "bin"
        directory.mkdir(parents=True)
        for name, version in versions.items():
            (directory / name).write_text(f"#!/bin/sh\necho '{name} {version} (0 2022-01-01)'\n")
            (directory / name).chmod(0o755)
        return str(directory)

    monkeypatch.delenv("RUSTC", raising=False)
    monkeypatch.setenv("CARGO_HOME", str(tmp_path / "rustup"))

    def put(first, rustups=None):
        if rustups:
            write("rustup", **rustups)
        monkeypatch.setenv("PATH", f"{write('first', **first)}:/usr/bin:/bin")

    return put


def test_the_version_of_rust_is_the_one_of_the_manifest_and_of_the_readme(backend):
    assert f'rust-version = "{backend.needed()}"' in (TOOLS.parent / "Cargo.toml").read_text()
    assert f"Rust {backend.needed()} or newer" in (TOOLS.parent / "README.md").read_text()
    assert not backend.is_old(backend.needed())
    assert not backend.is_old(f"{backend.needed()}.1")
    assert not backend.is_old("2.0.0")
    assert backend.is_old("1.9.0")


@pytest.mark.parametrize(
    ("first", "rustups", "said"),
    [
        ({"cargo": "99.0.0", "rustc": "99.0.0"}, None, ""),
        ({"cargo": "1.65.0", "rustc": "1.63.0"}, None, "first/bin/cargo is 1.65.0; https://rustup.rs installs a newer"),
        ({"cargo": "99.0.0", "rustc": "1.63.0"}, None, "first/bin/rustc is 1.63.0; https://rustup.rs"),
        ({"cargo": "1.65.0", "rustc": "1.63.0"}, {"cargo": "99.0.0"}, "rustup/bin has 99.0.0: put it first"),
        ({"cargo": "(no default)", "rustc": "99.0.0"}, None, "first/bin/cargo does not tell its version"),
    ],
)
def test_an_old_rust_is_one_line_that_says_what_to_do(backend, rust, first, rustups, said):
    rust(first, rustups)
    ran = subprocess.run([sys.executable, TOOLS / "build_backend.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == (1 if said else 0)
    assert said in ran.stderr
    assert ran.stderr.count("\n") == bool(said)
    if said:
        assert f"needs Rust {backend.needed()} or newer" in ran.stderr


def test_elsewhere_than_on_linux_one_line_names_the_guide(backend, rust, monkeypatch):
    rust({"cargo": "99.0.0", "rustc": "99.0.0"})
    monkeypatch.setattr(sys, "platform", "darwin")
    said = backend.problem()
    assert said.startswith("Tailrace runs on Linux, and this is darwin;")
    (guide,) = re.findall(r"docs/\w+\.md", said)
    assert (TOOLS.parent / guide).exists()


def test_the_hooks_of_the_build_are_maturins_once_rust_is_new_enough(backend, rust):
    maturin = need_module("maturin")
    rust({"cargo": "99.0.0", "rustc": "99.0.0"})
    assert backend.build_wheel is maturin.build_wheel
    assert backend.build_editable is maturin.build_editable
    assert not hasattr(backend, "build_nothing")
    Path(shutil.which("cargo")).write_text("#!/bin/sh\necho cargo 1.65.0\n")
    with pytest.raises(SystemExit, match="needs Rust"):
        _ = backend.get_requires_for_build_wheel


def test_packages_are_named_before_they_are_installed_and_can_be_declined(tmp_path):
    def run(**environ):
        (tmp_path / "apt-get").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/ran\n')
        (tmp_path / "sudo").write_text('#!/bin/sh\n[ "$1" != -n ] || shift\nexec "$@"\n')
        for name in ("apt-get", "sudo"):
            (tmp_path / name).chmod(0o755)
        command = [TOOLS / "debian-packages.sh", "the tests", "absent-command=some-package", "sh=dash"]
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", **environ}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)

    declined = run(NO_APT="1")
    assert (
        declined.stderr == "the tests: missing Debian packages; to install them: sudo apt-get install some-package \n"
    )
    assert (declined.returncode, (tmp_path / "ran").exists()) == (0, False)
    assert run(NO_APT="1", CI="true").returncode == 1
    said = run().stderr.splitlines()
    assert said[0].startswith(
        "the tests: Debian packages are missing, and are installed into this system now (NO_APT=1"
    )
    assert said[1].endswith("apt-get install --no-install-recommends some-package ")
    assert "some-package" in (tmp_path / "ran").read_text()


def test_commands_that_run_together_are_shown_whole_and_one_that_fails_fails_the_run():
    fails, passes = "sh -c 'echo one; echo two >&2; exit 3'", "echo three"

    def run(*commands):
        return subprocess.run(
            [sys.executable, TOOLS / "together.py", *commands], capture_output=True, text=True, check=False
        )

    both = run(fails, passes)
    assert both.returncode == 1
    assert f"one\ntwo\n== {fails}: status 3 after " in both.stdout
    assert f"three\n== {passes}: status 0 after " in both.stdout
    assert run(passes, passes).returncode == 0
    absent = run("absent-command of-nobody", passes)
    assert absent.returncode == 1
    assert "absent-command'\n== absent-command of-nobody: status 127 after " in absent.stdout
    assert f"three\n== {passes}: status 0 after " in absent.stdout
    # What a command leaves behind in the background is not waited for.
    left = run("sh -c 'sleep 600 & echo $!'")
    os.kill(int(left.stdout.partition("\n")[0]), signal.SIGKILL)
    assert left.returncode == 0


def test_a_proof_is_repeated_when_a_file_the_command_or_a_variable_changes_or_it_has_failed(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "unless_proved.sh", tmp_path / "tools")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "a").mkdir()
    name = tmp_path / 'a/ein "Ä" mit Leerzeichen'
    name.write_text("1")
    (tmp_path / "b").write_text("1")

    def runs(command="echo ran", **variables):
        done = subprocess.run(
            [tmp_path / "tools/unless_proved.sh", "a", "--", "sh", "-c", command],
            env={**os.environ, "BUILD_CACHE": str(tmp_path / "a cache"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr
        return done.stdout.strip() == "ran"

    assert [runs(), runs()] == [True, False]
    (tmp_path / "b").write_text("2")
    assert not runs()
    name.write_text("2")
    assert [runs(), runs()] == [True, False]
    assert [runs("echo ran; exit 1"), runs("echo ran; exit 1")] == [True, True]
    for variable in ("RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "LOOM_MAX_PREEMPTIONS", "MAKEFLAGS", "RUSTC_WRAPPER"):
        assert [runs(**{variable: "1"}), runs(**{variable: "1"}), runs()] == [True, False, False]
    subprocess.run(["git", "-C", tmp_path, "add", "a"], check=True)
    name.rename(tmp_path / "a/c")
    assert [runs(), runs()] == [True, False]


@pytest.fixture
def clone(tmp_path):
    """Runs compiled.sh in clones with these names and locks, with commands in place of others; what `target` has."""

    def run(*arguments, name="first", lock="1", compiled=(), **commands):
        root, fakes = tmp_path / name, tmp_path / "fakes"
        shutil.rmtree(fakes, ignore_errors=True)
        for folder in (root / "tools", root / "target", fakes):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOOLS / "compiled.sh", root / "tools")
        (root / "Cargo.lock").write_text(lock)
        for path in compiled:
            (root / "target" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "target" / path).write_text(path)
        for command, script in commands.items():
            (fakes / command).write_text(f"#!/bin/sh\n{script}\n")
            (fakes / command).chmod(0o755)
        environ = {
            **os.environ,
            "BUILD_CACHE": str(tmp_path / "the [cache] *"),
            "PATH": f"{fakes}:{os.environ['PATH']}",
        }
        ran = subprocess.run(
            [root / "tools/compiled.sh", *arguments], env=environ, capture_output=True, text=True, check=False
        )
        found = {str(each.relative_to(root / "target")) for each in (root / "target").rglob("*") if each.is_file()}
        return found, ran.stderr

    return run


DEPENDENCIES = {"ci/deps/a.rlib", "ci/build/b/out/b.rs", "ci/.fingerprint/b/b.json"}
KILLED = "kill -KILL $$"


def test_another_clone_gets_what_has_been_compiled_and_none_of_the_workspace(clone):
    assert clone("get") == (set(), "")
    own = {"ci/deps/tailrace_http.rlib", "ci/build/tailrace-wsgi/out/c", "ci/libtailrace.so"}
    assert clone("keep", "ci", compiled=DEPENDENCIES | own)[1] == ""
    assert clone("get", name="second") == (DEPENDENCIES, "")
    # Another Cargo.lock takes its place.
    assert clone("get", name="third", lock="3") == (set(), "")
    clone("keep", "ci", name="third", lock="3", compiled={"ci/deps/c.rlib", "ci/.fingerprint/c"})
    assert clone("get", name="fourth") == (set(), "")


@pytest.mark.parametrize("command", ["find", "cp", "mv"])
def test_a_copy_that_was_killed_is_not_taken_for_a_whole_one(clone, command):
    said = clone("keep", "ci", compiled=DEPENDENCIES, **{command: KILLED})[1]
    assert "cannot keep target/ci in " in said
    assert clone("get", name="second") == (set(), "")
    assert clone("keep", "ci") == (DEPENDENCIES, "")
    assert clone("get", name="second", **{command: KILLED})[0] == (DEPENDENCIES if command == "find" else set())
    assert clone("get", name="third") == (DEPENDENCIES, "")


def test_what_another_clone_removes_during_the_copy_is_not_taken(clone):
    clone("keep", "ci", compiled=DEPENDENCIES)
    # The copy succeeds, but the folder has been renamed and some of its files were gone already.
    copies = '/bin/cp "$@"; mv "$2" "$2.gone"; find "$3" -name "*.rs" -delete'
    assert clone("get", name="second", cp=copies) == (set(), "")


def test_promises_name_tests_and_files_that_exist(tmp_path):
    for folder in ("tools", "docs/internals", "tests", "crates"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(TOOLS / "check_promises.py", tmp_path / "tools")
    (tmp_path / "tests/test_a.py").write_text("def test_one():\n    pass\n\n\nasync def test_two():\n    pass\n")
    (tmp_path / "tests/test_b.py").write_text("def test_three():\n    pass\n")
    (tmp_path / "crates/a.rs").write_text(
        "#[test]\n#[ignore]\nfn it_does_what_it_should() {}\nfn it_is_not_a_test() {}\n"
    )

    def run(names):
        (tmp_path / "docs/internals/promises.md").write_text(names)
        command = [sys.executable, tmp_path / "tools/check_promises.py"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return re.findall(r"there is no (\S+)|(names no test)", ran.stdout), ran.returncode

    assert run("`test_a.py::test_one`, `test_two`, `test_three`, `it_does_what_it_should`, `serve_in_thread`") == (
        [],
        0,
    )
    assert run("`test_a.py::test_three`, `test_b.py::test_three`") == ([("test_a.py::test_three", "")], 1)
    assert run("`test_c.py::test_three`") == ([("test_c.py", "")], 1)
    assert run("`test_four`, `it_is_not_a_test`") == ([("it_is_not_a_test", ""), ("test_four", "")], 1)
    assert run("`serve_in_thread`") == ([("", "names no test")], 1)


def test_each_test_file_has_a_name_of_its_own_and_each_folder_a_place_in_the_map():
    tests = TOOLS.parent / "tests"
    names = [path.name for path in tests.rglob("test_*.py")]
    assert {name for name in names if names.count(name) > 1} == set()
    text = (TOOLS.parent / "CONTRIBUTING.md").read_text()
    entry = text[text.index("    tests/  ") : text.index("    fuzz/  ")]
    folders = {path.name for path in tests.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {folder for folder in folders if not re.search(rf"\b{folder}\b", entry)} == set()
