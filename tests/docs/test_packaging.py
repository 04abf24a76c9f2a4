"""docs/packaging.md says what the sources, the manifests and the tools say."""

import ast
import os
import re
import subprocess
import sys

import pytest
from harness.pages import DOCS, ROOT, blocks, codes, rows, sections
from harness.toml import parse_toml
from harness.tools import missing, need_tool

PAGE = DOCS / "packaging.md"
TEXT = PAGE.read_text()
PROJECT = parse_toml((ROOT / "pyproject.toml").read_text())
CARGO = parse_toml((ROOT / "Cargo.toml").read_text())


def commands():
    return [command.line for block in blocks(PAGE) if block.language == "console" for command in block.commands]


def test_it_is_short():
    assert len(TEXT.splitlines()) < 80


def test_what_a_build_needs_is_what_the_manifests_demand():
    needed = dict(rows(PAGE, "requirements"))
    rust = CARGO["workspace"]["package"]["rust-version"]
    (maturin,) = PROJECT["build-system"]["requires"]
    lowest, below = re.fullmatch(r"maturin>=([\d.]+),<(\d+)", maturin).groups()
    python = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert needed["building"].startswith(
        f"Rust {rust} or newer, Python {python} or newer with its headers, maturin {lowest} or newer (below {below}),"
    )
    names = {re.match(r"[\w-]+", each)[0] for each in PROJECT["project"]["dependencies"]}
    assert set(codes(needed["running"])) - {"libgcc_s"} == names


def test_the_extension_is_built_for_one_version_of_python():
    manifest = (ROOT / "crates/wsgi/Cargo.toml").read_text()
    assert "abi3" not in manifest
    assert "does not use the stable ABI" in " ".join(TEXT.split())


def test_the_libraries_in_c_are_those_that_are_linked():
    linked = re.findall(r"^([\w-]+-sys) \d", (ROOT / "THIRD-PARTY.txt").read_text(), re.MULTILINE)
    # Constants of Linux, in Rust.
    assert {each for each in linked if each != "linux-raw-sys"} == {"aws-lc-sys", "zstd-sys"}
    for name in ("aws-lc-sys", "zstd-sys"):
        assert f"`{name}`" in sections(PAGE, 2)["C libraries and licenses"]


def test_panics_unwind_and_the_wheel_keeps_the_notes():
    profiles = CARGO["profile"]
    assert profiles["release"]["panic"] == "unwind"
    # `symbols` leaves allocated sections, as that of the notes is.
    assert (profiles["wheel"]["inherits"], profiles["wheel"]["strip"]) == ("release", "symbols")
    (core,) = (ROOT / "tailrace").glob("_tailrace*.so")
    shown = subprocess.run([need_tool("readelf"), "--sections", "--wide", core], capture_output=True, text=True)
    assert ".note.stapsdt" in shown.stdout


def test_files_targets_and_variables_exist():
    for name in ("THIRD-PARTY.txt", "deny.toml", "Cargo.lock", "tools/third_party.py", "tests/smoke.py", "packages"):
        assert name in TEXT
        assert (ROOT / name).exists()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "TEST_PACKAGES :=" in makefile
    assert "test" in PROJECT["dependency-groups"]
    crate = (ROOT / "tools/cross.sh").read_text()
    for variable in re.findall(r"`(ZSTD_\w+=1)`", TEXT):
        assert variable in crate


def test_the_smoke_test_needs_nothing_but_the_package():
    tree = ast.parse((ROOT / "tests/smoke.py").read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {*sys.stdlib_module_names, "tailrace"}
    assert "python3 tests/smoke.py" in commands()


@pytest.mark.nightly()
def test_vendored_crates_are_all_that_a_build_needs(tmp_path):
    """Vendors as the page says, and resolves every crate with an empty registry and no network."""
    made, vendored = commands()[:2]
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract"], cwd=tmp_path, input=archive, check=True)
    done = subprocess.run(["sh", "-ec", f"{made}\n{vendored}"], cwd=tmp_path, capture_output=True, text=True)
    if done.returncode:
        missing(f"the crates cannot be vendored here: {done.stderr[-300:]}")
    (offline,) = [line for line in commands() if line.startswith("export ")]
    resolve = "cargo metadata --locked --format-version 1 --manifest-path crates/wsgi/Cargo.toml >/dev/null"
    inside = [need_tool("unshare"), "--net", "--map-root-user"]
    rustup = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~/.rustup")
    done = subprocess.run(
        [*inside, "sh", "-ec", f"{offline}\n{resolve}"],
        cwd=tmp_path,
        env={**os.environ, "CARGO_HOME": str(tmp_path / "home"), "RUSTUP_HOME": rustup},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
