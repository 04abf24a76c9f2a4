"""The scripts in tools/."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.tools import need_module

TOOLS = Path(__file__).resolve().parents[2] / "tools"


BACKEND = TOOLS / "build_backend.py"


@pytest.fixture
def backend():
    spec = importlib.util.spec_from_file_location("build_backend", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    ran = subprocess.run([sys.executable, BACKEND], capture_output=True, text=True, check=False)
    assert ran.returncode == (1 if said else 0)
    assert said in ran.stderr
    assert ran.stderr.count("\n") == bool(said)
    if said:
        assert f"needs Rust {backend.needed()} or newer" in ran.stderr


def test_an_old_rust_of_rustup_is_updated(backend, rust, monkeypatch, tmp_path):
    rust({}, {"cargo": "1.70.0", "rustc": "1.70.0"})
    monkeypatch.setenv("PATH", f"{tmp_path}/rustup/bin")
    assert backend.problem().endswith("cargo is 1.70.0; `rustup update` brings a newer one")


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


@pytest.fixture
def after_a_run(tmp_path):
    """What tools/test_again.sh says after a run of tests in which these have failed, and its exit status."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    tests = "import pytest\n@pytest.mark.parametrize('number', range(9))\ndef test_{0}(number):\n    assert {1}\n"
    (tmp_path / "test_all.py").write_text(tests.format("steady", False) + tests.format("unsteady", True))

    def run(*failed, unfinished=False):
        cache = tmp_path / ".pytest_cache/v/cache"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "lastfailed").write_text(json.dumps({f"test_all.py::{name}": True for name in failed}))
        if unfinished:
            (tmp_path / ".pytest_cache/unfinished").touch()
        ran = subprocess.run([TOOLS / "test_again.sh"], cwd=tmp_path, capture_output=True, text=True, check=False)
        return ran.stdout, ran.returncode

    return run


def test_up_to_three_tests_that_failed_run_again_and_are_named(after_a_run):
    names = [f"test_unsteady[{number}]" for number in range(4)]
    said, status = after_a_run(*names[:3])
    assert (said.count("Unsteady, if it passes now: test_all.py::test_unsteady["), status) == (3, 0)
    assert "3 passed" in said
    assert after_a_run(*names) == ("", 1)
    assert after_a_run() == ("", 1)


def test_a_test_that_fails_again_fails_the_run(after_a_run):
    said, status = after_a_run("test_unsteady[0]", "test_steady[0]")
    assert "1 failed, 1 passed" in said
    assert status == 1


def test_tests_of_a_run_that_has_not_come_to_its_end_do_not_run_again(after_a_run):
    assert after_a_run("test_unsteady[0]", unfinished=True) == ("", 1)


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
