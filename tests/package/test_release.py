"""tools/release.py and tools/distribution/: what a wheel, a source distribution and a tree must be for a release."""

import importlib
import io
import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from harness.tools import need_tool

import tailrace

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = Path(tailrace._tailrace.__file__)
PYTHON = f"{sys.version_info.major}{sys.version_info.minor}"
LIBRARY = f"tailrace/_tailrace.cpython-{PYTHON}-x86_64-linux-gnu.so"
INFORMATION = "tailrace-1.2.3.dist-info"
SBOM = f"{INFORMATION}/sboms/tailrace-wsgi.cyclonedx.json"
# The extension of the tests is linked against the glibc of this machine.
PLATFORM = "manylinux2014_x86_64.manylinux_2_99_x86_64"
METADATA = """\
Metadata-Version: 2.4
Name: tailrace
Version: 1.2.3
Summary: A WSGI server
Keywords: wsgi
License-Expression: MIT
License-File: LICENSE
License-File: THIRD-PARTY.txt
Requires-Python: >=3.10
Project-URL: Source, https://example.org
Classifier: Typing :: Typed
Provides-Extra: status

[Tailrace](https://example.org/) ![chart](https://example.org/chart.svg)
"""


@pytest.fixture(scope="module")
def release():
    sys.path.insert(0, str(ROOT / "tools"))
    yield importlib.import_module("release")
    sys.path.remove(str(ROOT / "tools"))
    for name in list(sys.modules):
        if name in ("release", "third_party") or name.partition(".")[0] == "distribution":
            del sys.modules[name]


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    """The extension of the tests as a wheel has it."""
    path = tmp_path_factory.mktemp("stripped") / "extension.so"
    subprocess.run([need_tool("strip"), "-s", "-o", path, EXTENSION], check=True)
    return path.read_bytes()


def sbom(version="1.2.3", names=("tailrace-http", "tailrace-server", "pyo3", "rustix"), **more):
    subject = {"name": "tailrace-wsgi", "version": version}
    document = {"bomFormat": "CycloneDX", "metadata": {"component": subject}}
    return json.dumps({**document, "components": [{"name": name} for name in names], **more}).encode()


@pytest.fixture
def wheel(release, tmp_path, stripped):
    """Writes a wheel: a complete one, with these files instead of its own; None leaves one out."""

    def write(files=None, platform=PLATFORM, record=None, name=None):
        path = tmp_path / (name or f"tailrace-1.2.3-cp{PYTHON}-cp{PYTHON}-{platform}.whl")
        content = {
            "tailrace/__init__.py": b"",
            "tailrace/py.typed": b"",
            "tailrace/_tailrace.pyi": b"",
            LIBRARY: stripped,
            f"{INFORMATION}/METADATA": METADATA.encode(),
            f"{INFORMATION}/WHEEL": b"Wheel-Version: 1.0\n",
            f"{INFORMATION}/entry_points.txt": b"[console_scripts]\ntailrace=tailrace.command:main\n",
            f"{INFORMATION}/licenses/LICENSE": b"MIT License",
            f"{INFORMATION}/licenses/THIRD-PARTY.txt": b"pyo3",
            SBOM: sbom(),
            **(files or {}),
        }
        content = {name: data for name, data in content.items() if data is not None}
        digest = importlib.import_module("distribution.wheel").digest
        lines = [f"{name},{digest(data)},{len(data)}\n" for name, data in content.items()]
        content[f"{INFORMATION}/RECORD"] = record or "".join([*lines, f"{INFORMATION}/RECORD,,\n"]).encode()
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in content.items():
                entry = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
                entry.external_attr = (0o755 if name == LIBRARY else 0o644) << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=1)
        return path

    return write


def problems(release, path, machine=("/home/somebody",)):
    return release.Wheel.problems(path, "1.2.3", release.probes(), machine)


def test_a_complete_wheel_passes(release, wheel):
    assert problems(release, wheel()) == []


def metadata(old, new):
    """The metadata with this change."""
    assert old in METADATA
    return {f"{INFORMATION}/METADATA": METADATA.replace(old, new).encode()}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({SBOM: None}, "there is no SBOM"),
        ({SBOM: sbom(version="1.2.2")}, "it describes tailrace-wsgi 1.2.2, not 1.2.3"),
        ({SBOM: sbom(names=["tailrace-http", "tailrace-server", "pyo3"])}, "it does not name rustix"),
        ({SBOM: sbom(bomFormat="SPDX")}, "it is SPDX, not CycloneDX"),
        ({SBOM: b"[]"}, "no SBOM of CycloneDX: TypeError"),
        ({f"{INFORMATION}/licenses/LICENSE": None}, "licenses/LICENSE"),
        ({f"{INFORMATION}/entry_points.txt": None}, "entry_points.txt"),
        ({"tailrace/py.typed": None}, "there is no tailrace/py.typed"),
        ({"tests/smoke.py": b""}, "tests/smoke.py does not belong into it"),
        ({"tailrace/__pycache__/a.pyc": b""}, "a.pyc does not belong into it"),
        ({"tailrace/data.bin": random.Random(1).randbytes(6_000_000)}, "the limit is 6,000,000"),
        ({"tailrace/a.py": b"# /home/somebody/tailrace"}, "tailrace/a.py names /home/somebody"),
        ({LIBRARY: None}, "its shared libraries are none"),
        ({LIBRARY: b"no library"}, "is no ELF file"),
        ({"tailrace/_tailrace.cpython-39-x86_64-linux-gnu.so": b""}, "not one _tailrace for CPython"),
        ({f"{INFORMATION}/METADATA": None}, "METADATA"),
        (metadata("2.4", "2.3"), "PEP 639 needs 2.4"),
        (metadata("1.2.3", "1.2.4"), "Version: 1.2.4, not 1.2.3"),
        (metadata("License-Expression: MIT", "License: MIT"), "Expression"),
        (metadata("License-File: THIRD-PARTY.txt\n", ""), "the License-File LICENSE, not LICENSE and THIRD-PARTY.txt"),
        (metadata("Typing", "License"), "License :: Typed beside"),
        (metadata("status", "lint"), "lint is for contributors"),
        (metadata("https://example.org/chart", "docs/chart"), "links to docs/chart.svg, which no package index has"),
        (metadata("Project-URL", "Home"), "has no Project-URL"),
    ],
)
def test_a_wheel_that_lacks_something_is_refused_with_the_reason(release, wheel, files, said):
    (found,) = problems(release, wheel(files))
    assert said in found


def test_a_record_that_is_wrong_is_named(release, wheel):
    (found, *_) = problems(release, wheel(record=f"tailrace/__init__.py,sha256=x,0\n{INFORMATION}/RECORD,,\n".encode()))
    assert found == "RECORD has another digest or size of tailrace/__init__.py, or none"


def test_a_wheel_with_debugging_information_is_refused(release, wheel):
    found = problems(release, wheel({LIBRARY: EXTENSION.read_bytes()}))
    assert any("is not stripped: it has .debug_" in each for each in found)


def test_a_wheel_has_the_probes_of_the_sources(release, wheel, tmp_path, stripped):
    path = tmp_path / "without.so"
    path.write_bytes(stripped)
    subprocess.run([need_tool("objcopy"), "--remove-section", ".note.stapsdt", path], check=True)
    (found,) = problems(release, wheel({LIBRARY: path.read_bytes()}))
    assert "has not the probes of the sources" in found
    assert all(name in found for name in release.probes())


def test_the_platform_of_a_wheel_is_one_that_indexes_take_and_that_is_true(release, wheel):
    (found,) = problems(release, wheel(platform="linux_x86_64"))
    assert "neither manylinux nor musllinux" in found
    (found,) = problems(release, wheel(platform="manylinux_2_1_x86_64.manylinux1_x86_64"))
    assert re.search(r"needs glibc 2\.\d+, and the name says manylinux_2_1_x86_64", found)


def test_a_wheel_of_another_name_or_form_is_refused(release, wheel):
    for name in ("tailrace-1.2.2-cp312-cp312-any.whl", "tailrace-1.2.3-cp310-abi3-any.whl", "penstock-1.2.3.whl"):
        assert problems(release, wheel(name=name)) == [
            "the name is not that of a wheel of Tailrace 1.2.3 for one CPython"
        ]
    path = wheel()
    path.write_bytes(b"no archive")
    (found,) = problems(release, path)
    assert found.startswith("no zip file")


def test_the_sbom_names_no_directory_of_the_machine_and_nothing_else_changes(release, wheel):
    path = wheel({SBOM: sbom(properties="path+file:///home/somebody/tailrace/crates/wsgi")})
    with zipfile.ZipFile(path) as archive:
        before = {
            each.filename: (archive.read(each), each.date_time, each.external_attr) for each in archive.infolist()
        }
    assert problems(release, path) == [f"{SBOM} names /home/somebody, a directory of the machine that built it"]
    release.relocate(path, Path("/home/somebody/tailrace"), "/tailrace-1.2.3")
    assert problems(release, path) == []
    with zipfile.ZipFile(path) as archive:
        after = {each.filename: (archive.read(each), each.date_time, each.external_attr) for each in archive.infolist()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {SBOM, f"{INFORMATION}/RECORD"}
    assert b"path+file:///tailrace-1.2.3/crates/wsgi" in after[SBOM][0]
    assert list(after)[-1] == f"{INFORMATION}/RECORD"


@pytest.fixture
def archive(release, tmp_path):
    """Writes a source distribution: a complete one, without this file, or with one more."""

    def write(without=None, more=None):
        source = importlib.import_module("distribution.source")
        path = tmp_path / "tailrace-1.2.3.tar.gz"
        names = [f"tailrace-1.2.3/{name}" for name in (*source._NEEDED, "PKG-INFO") if name != without]
        with tarfile.open(path, "w:gz") as written:
            for name in [*names, *([more] if more else [])]:
                entry = tarfile.TarInfo(name)
                entry.size = len(METADATA)
                written.addfile(entry, io.BytesIO(METADATA.encode()))
        return source.problems(path, "1.2.3")

    return write


def test_a_source_distribution_has_what_a_build_needs_and_nothing_built(archive):
    assert archive() == []
    assert archive(without="Cargo.lock") == ["there is no Cargo.lock"]
    assert archive(without="tools/build_backend.py") == ["there is no tools/build_backend.py"]
    assert archive(without="PKG-INFO") == ["there is no PKG-INFO"]
    assert archive(more="tailrace-1.2.3/tailrace/a.so") == ["tailrace-1.2.3/tailrace/a.so does not belong into it"]
    assert archive(more="../escaped") == ["../escaped does not belong into it"]


READY = """# Changelog

## [Unreleased]

## [1.2.3] - 2026-12-31

### Added

- A feature.
"""


@pytest.fixture
def tree(tmp_path):
    """A repository that is ready for a release, but for these files."""

    def write(**files):
        root = tmp_path / "tree"
        shutil.rmtree(root, ignore_errors=True)
        lock = (
            '[[package]]\nname = "tailrace-http"\nversion = "1.2.3"\n\n[[package]]\nname = "other"\nversion = "9.9.9"\n'
        )
        content = {
            "Cargo.toml": '[workspace.package]\nversion = "1.2.3"\n',
            "Cargo.lock": lock,
            "fuzz/Cargo.lock": lock + '\n[[package]]\nname = "tailrace-fuzz"\nversion = "0.0.0"\n',
            "CHANGELOG.md": READY,
            "packages/a/pyproject.toml": '[project]\nversion = "1.2.3"\ndependencies = ["tailrace==1.2.3"]\n',
            **files,
        }
        for name, text in content.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(root, "init", "--quiet")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", "All")
        return root

    return write


def git(root, *arguments):
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run([need_tool("git"), *identity, *arguments], cwd=root, check=True)


def test_a_tree_is_ready_when_every_version_is_the_same_and_nothing_is_uncommitted(release, tree):
    root = tree()
    assert release.version.version_of(root) == "1.2.3"
    assert release.version.problems(root) == []
    git(root, "tag", "v1.2.3")
    assert release.version.problems(root) == []
    (root / "new.py").touch()
    assert release.version.problems(root) == ["the working tree has changes, such as new.py; commit or remove them"]
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "More")
    assert release.version.problems(root) == ["the tag v1.2.3 names another commit; raise the version in Cargo.toml"]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- Another.\n", "[Unreleased] is not empty"),
        ("CHANGELOG.md", "[1.2.3]", "[1.2.2]", "the newest version is 1.2.2, Cargo.toml has 1.2.3"),
        ("CHANGELOG.md", " - 2026-12-31", "", "[1.2.3] has no date"),
        ("CHANGELOG.md", "## [Unreleased]\n", "", "the first entry is not [Unreleased]"),
        ("CHANGELOG.md", READY[READY.index("## [1") :], "", "there is no entry for 1.2.3"),
        ("Cargo.lock", '"1.2.3"', '"1.2.2"', "tailrace-http is 1.2.2, Cargo.toml has 1.2.3"),
        ("fuzz/Cargo.lock", '"1.2.3"', '"1.2.2"', "fuzz/Cargo.lock: tailrace-http is 1.2.2"),
        ("packages/a/pyproject.toml", '"1.2.3"', '"1.2.2"', "packages/a/pyproject.toml: it is not 1.2.3 with"),
        ("packages/a/pyproject.toml", '"tailrace==1.2.3"', '"tailrace"', "is not 1.2.3 with `tailrace==1.2.3`"),
    ],
)
def test_a_tree_that_is_not_ready_is_refused_with_the_reason(release, tree, file, old, new, said):
    text = (tree() / file).read_text()
    assert old in text
    (found,) = release.version.problems(tree(**{file: text.replace(old, new)}))
    assert said in found


def test_nothing_is_built_of_a_tree_that_is_not_ready(release, monkeypatch, capsys):
    monkeypatch.setattr(release.version, "problems", lambda root: ["the working tree has changes"])
    monkeypatch.setattr(release, "Release", None)
    monkeypatch.setattr(sys, "argv", ["release.py"])
    assert release.main() == 1
    assert "error: the working tree has changes\nnothing was built; `make release DRAFT=1`" in capsys.readouterr().err


def test_a_step_that_fails_fails_the_run_and_the_others_are_done(release, monkeypatch, capsys, tmp_path):
    ran = []

    def fail(command, environ, cwd=None):
        ran.append(command[1])
        raise release.Failure("maturin failed with status 1", "why\n")

    monkeypatch.setattr(release, "run", fail)
    monkeypatch.setattr(release.third_party, "is_current", lambda: True)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "Cargo.toml").write_text('[workspace.package]\nversion = "1.2.3"\n')
    monkeypatch.setattr(sys, "argv", ["release.py", "--wheels", "--unguided", "--untried", "3.98", "3.99"])
    assert release.main() == 1
    said = capsys.readouterr()
    assert ran == ["build", "build", "-m"]
    assert "== wheel for Python 3.99 (no interpreter here)\nwhy\n" in said.out
    assert "error: wheel for Python 3.98 (no interpreter here): maturin failed with status 1" in said.err
    assert said.out.endswith("3 checks failed\n")


def test_a_wheel_is_tried_without_a_compiler(release, monkeypatch, tmp_path):
    ran = []

    def run(command, environ, cwd=None):
        ran.append((command, environ))
        (tmp_path / "venv/bin").mkdir(parents=True, exist_ok=True)
        return "ok    command line: hello\nok    command line: a_list\nall well\n"

    monkeypatch.setattr(release, "run", run)
    assert release.try_out("python3", tmp_path / "a.whl", tmp_path) == "2 checks"
    (_, _), (install, environ), (smoke, its) = ran
    assert environ["PATH"] == its["PATH"] == str(tmp_path / "venv/bin")
    assert install[-3:] == ["--only-binary", ":all:", f"{tmp_path}/a.whl[status]"]
    assert smoke[-1] == str(ROOT / "tests/smoke.py")


def test_every_python_of_the_classifiers_gets_a_wheel(release):
    assert release.pythons() == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert release.interpreter(here) is not None
    assert release.interpreter("3.99") is None


def test_extras_are_for_users_and_programs_that_judge_have_exact_versions():
    text = (ROOT / "pyproject.toml").read_text()
    extras = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^(\w+) = ", extras, re.MULTILINE)) == {
        *("compare", "gevent", "otlp", "postgresql", "redis", "reload", "status", "title", "tools", "top")
    }
    groups = text.partition("[dependency-groups]\n")[2].partition("\n[project.scripts]")[0]
    for name in ("maturin", "mypy", "ruff", "types-gevent", "types-greenlet", "twine", "ziglang", "pip-audit"):
        assert re.search(rf'"{name}==[\d.]+"', groups), name


def test_the_packages_have_the_version_of_the_server(release):
    assert list(release.version._packages(ROOT, release.version.version_of(ROOT))) == []
