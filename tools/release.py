"""Builds, checks and tries what a release publishes, and publishes nothing.

    python tools/release.py                      # the source distribution and all wheels, into dist/
    python tools/release.py --draft              # of any tree: changes and a changelog without the version are warnings
    python tools/release.py --wheels 3.10 3.13   # of any tree: the wheels for these Pythons alone, into build/wheels
    python tools/release.py --wheels --unguided 3.10   # without profile-guided optimization, in half the time

`make release`, `make wheel` and `make wheels` call it. A Python is looked for as python3.X on PATH and under pyenv.
Without an interpreter a wheel is built all the same, by what maturin knows about that Python, and checked, but not
tried. With --wheels and CI=true that is a failure, except for a version given by --untried.

A wheel is linked by zig against an old glibc, so that it runs on older systems than this one. It is tried in a new
virtual environment, with nothing else on PATH, by tests/smoke.py. docs/internals/releasing.md tells how a release is
made. Exit status: 0 when every file has passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import profile_guided
import third_party
from distribution import source, version
from distribution.relocate import relocate
from distribution.wheel import Wheel

ROOT: Final = Path(__file__).resolve().parent.parent
# glibc 2.17, of 2012: the oldest that Rust supports.
COMPATIBILITY: Final = "manylinux2014"
TARGET: Final = f"{platform.machine()}-unknown-linux-gnu"
# Functions without counts that the core for another Python may have: 36 are usual, 3,700 when all names are others.
OWN_FUNCTIONS: Final = 300
# Of the optimizations, the one that takes longest.
_FAST: Final = {"CARGO_PROFILE_WHEEL_LTO": "off", "CARGO_PROFILE_WHEEL_CODEGEN_UNITS": "16"}


@dataclass
class Result:
    """A file, and what is known about it."""

    path: Path
    problems: list[str] = field(default_factory=list)
    tried: str = "no"


class Release:
    """A run: builds into `out`, in `work`."""

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self._work = out, work
        self.version = version.version_of(ROOT)
        self.results: list[Result] = []
        self.failures: list[str] = []
        self._guided: dict[str, str] = {}
        shutil.rmtree(work, ignore_errors=True)
        for directory in (out, work):
            directory.mkdir(parents=True, exist_ok=True)
        for old in out.glob("tailrace[-_]*"):
            old.unlink()

    def licences(self) -> None:
        """Has the licences of the crates compared with the file that wheels have."""
        with self._step("licences of the crates"):
            try:
                if not third_party.is_current():
                    raise Failure("THIRD-PARTY.txt does not follow Cargo.lock; run tools/third_party.py", "")
            except third_party.Problem as problem:
                raise Failure(str(problem), "") from None

    def profile(self) -> None:
        """Counts what a core runs, so that the wheels are laid out by it."""
        with self._step("profile for the wheels"):
            try:
                # zig cannot link what counts, and the names of functions depend on it all the same.
                linker = {f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}_LINKER": "cc"}
                options = ["--target", TARGET, "--zig", "--compatibility", "off"]
                counts = profile_guided.counts("wheel", environment(linker), options)
            except profile_guided.Problem as problem:
                raise Failure(str(problem), "") from None
            self._guided = environment(flags=profile_guided.flags(counts))

    def source(self) -> Path | None:
        """Builds the source distribution. None if that fails."""
        built: list[Path] = []
        with self._step("source distribution"):
            run([maturin(), "sdist", "--out", str(self.out)], environment())
            built += self.out.glob("*.tar.gz")
            self.results += [Result(path, source.problems(path, self.version)) for path in built]
        return built[0] if built else None

    def packages(self) -> None:
        """Builds the wheels of the packages beside the server, which are the same for every Python."""
        for directory in sorted((ROOT / "packages").glob("*/")):
            with self._step(f"wheel of packages/{directory.name}"):
                command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
                built = self._work / directory.name
                run([*command, "--wheel-dir", str(built), str(directory)], environment())
                (path,) = built.glob("*.whl")
                self.results.append(Result(path.replace(self.out / path.name)))

    def wheel(self, python: str, interpreter: str | None, needs_it: bool) -> None:
        """Builds, checks and tries the wheel for a Python."""
        with self._step(f"wheel for Python {python} ({interpreter or 'no interpreter here'})"):
            built = self._work / python
            command = [maturin(), "build", "--locked", "--profile", "wheel", "--out", str(built)]
            command += ["--interpreter", interpreter or python, "--zig", "--compatibility", COMPATIBILITY]
            command += ["--target", TARGET, "--target-dir", str(ROOT / "target/wheels")]
            said = run(command, self._guided or environment())
            (path,) = built.glob("*.whl")
            relocate(path, ROOT, f"/tailrace-{self.version}")
            result = Result(path.replace(self.out / path.name))
            self.results.append(result)
            result.problems = self._check(result.path)
            if (missing := profile_guided.missing(said)) > OWN_FUNCTIONS:
                result.problems.append(f"compiled without its profile, which lacks {missing} functions")
            if interpreter:
                result.tried = try_out(interpreter, result.path, self._work / f"try-{python}")
            elif needs_it:
                result.problems.append(f"there is no Python {python} to try it with")

    def wheel_of(self, path: Path) -> None:
        """Builds a wheel from the source distribution as pip does for users, and tries it."""
        with self._step("wheel from the source distribution, by pip"):
            built = self._work / "source"
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir"]
            fast = {"CARGO_TARGET_DIR": str(ROOT / "target/sdist"), **_FAST}
            run([*command, "--wheel-dir", str(built), str(path)], environment(fast))
            (wheel,) = built.glob("*.whl")
            tried = try_out(sys.executable, wheel, self._work / "try-source")
            self._result_of(path).tried = f"built, {tried}"

    def metadata(self) -> None:
        """Has twine look at all files as a package index does."""
        with self._step("metadata, by twine"):
            files = [str(each.path) for each in self.results]
            run([sys.executable, "-m", "twine", "check", "--strict", *files], environment())

    def table(self) -> str:
        """The files with their sizes, and what has been found."""
        rows = [("file", "bytes", "checks", "tried")]
        for each in self.results:
            failed = f"{len(each.problems)} failed" if each.problems else "passed"
            rows.append((each.path.name, f"{each.path.stat().st_size:,}", failed, each.tried))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def _check(self, path: Path) -> list[str]:
        return [*Wheel.problems(path, self.version, probes(), machine()), *schema_problems(path)]

    def _result_of(self, path: Path) -> Result:
        return next(each for each in self.results if each.path == path)

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """A step that fails does not keep the others from being done."""
        print(f"== {what}", flush=True)
        begun = time.monotonic()
        known = {id(each): len(each.problems) for each in self.results}
        try:
            yield
        except Failure as failure:
            self.failures.append(f"{what}: {failure}")
            print(failure.said, end="", flush=True)
        for each in self.results:
            for problem in each.problems[known.get(id(each), 0) :]:
                self.failures.append(f"{each.path.name}: {problem}")
        print(f"   {time.monotonic() - begun:.0f} s", flush=True)


class Failure(Exception):
    """A command failed; `said` is its output."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(reason)
        self.said = said


def run(command: list[str], environ: dict[str, str], cwd: Path = ROOT) -> str:
    """The output of a command, standard error with it."""
    ran = subprocess.run(
        command, env=environ, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = ran.stdout.decode(errors="replace")
    if ran.returncode:
        raise Failure(f"{Path(command[0]).name} failed with status {ran.returncode}", said)
    return said


def try_out(python: str, wheel: Path, directory: Path) -> str:
    """Installs a wheel in a new virtual environment and runs tests/smoke.py in it; what it said last.

    There is no compiler: PATH has the environment's programs alone, and pip may install wheels alone.
    """
    run([python, "-m", "venv", str(directory / "venv")], environment())
    programs = directory / "venv/bin"
    environ = {**environment(), "PATH": str(programs)}
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--only-binary", ":all:", f"{wheel}[status]"], environ)
    # An empty directory, so that the installed package is what runs and not the one in the repository.
    (directory / "empty").mkdir(parents=True)
    said = run([str(programs / "python"), str(ROOT / "tests/smoke.py")], environ, directory / "empty")
    return f"{len(re.findall('^ok ', said, re.MULTILINE))} checks"


def schema_problems(wheel: Path) -> list[str]:
    """What the schema of CycloneDX has against the SBOM of a wheel."""
    validation = importlib.import_module("cyclonedx.validation.json")
    versions = importlib.import_module("cyclonedx.schema").SchemaVersion
    found = []
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/sboms/" in name:
                # The version that maturin writes.
                error = validation.JsonStrictValidator(versions.V1_5).validate_str(archive.read(name).decode())
                found += [f"{name} is not valid: {error!s:.500}"] if error else []
    return found


def probes() -> set[str]:
    """Names of the USDT probes in the sources."""
    text = (ROOT / "crates/observe/src/probes.rs").read_text()
    return set(re.findall(r"\bprobe(?:_lazy)?!\(\s*tailrace,\s*(\w+)", text))


def interpreter(python: str) -> str | None:
    """The executable of a Python version. A pyenv shim exists for versions that are not selected, and fails: try it."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    ask = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for candidate in (f"python{python}", *sorted(map(str, versions.glob(f"{python}.*/bin/python"))), sys.executable):
        with contextlib.suppress(OSError):
            ran = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
            its, _, path = ran.stdout.strip().partition(" ")
            if its == python:
                return path
    return None


def environment(more: dict[str, str] | None = None, flags: Sequence[str] = ()) -> dict[str, str]:
    """The environment of the commands: the paths of this machine are not compiled in, and times are the commit's.

    flags: for rustc.
    """
    left_out = ("PYO3_PYTHON", "PYTHONPATH", "RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET")
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    replaced = {str(ROOT): f"/tailrace-{version.version_of(ROOT)}", str(cargo_home()): "/cargo"}
    remapped = [f"--remap-path-prefix={here}={there}" for here, there in replaced.items()]
    environ["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join([*remapped, *flags])
    # maturin finds zig by `python3 -m ziglang`.
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', os.defpath)}"
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    if committed.returncode == 0:
        environ["SOURCE_DATE_EPOCH"] = committed.stdout.strip()
    return {**environ, **(more or {})}


def machine() -> tuple[str, ...]:
    """Directories of this machine that no file of a wheel may name."""
    return str(ROOT), str(cargo_home())


def cargo_home() -> Path:
    """Where cargo keeps the sources of crates."""
    return Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")


def maturin() -> str:
    """The maturin of this environment."""
    return str(Path(sys.executable).parent / "maturin")


def pythons() -> list[str]:
    """The versions in the classifiers of pyproject.toml."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def main() -> int:
    """Runs all steps; the exit status."""
    parser = argparse.ArgumentParser(description="Builds, checks and tries what a release publishes.")
    parser.add_argument("--draft", action="store_true", help="build a tree that is not ready for a release, too")
    parser.add_argument("--wheels", action="store_true", help="build wheels alone, of a tree in any state")
    parser.add_argument("--unguided", action="store_true", help="without the profile, in half the time")
    parser.add_argument("--untried", action="append", default=[], metavar="VERSION", help="needs no interpreter")
    parser.add_argument("pythons", nargs="*", metavar="VERSION", help="of Python; without any, all that are supported")
    options = parser.parse_args()
    if options.unguided and not options.wheels:
        parser.error("a release is compiled with its profile; --unguided is for --wheels")
    said = [] if options.wheels else version.problems(ROOT)
    for each in said:
        print(f"{'warning' if options.draft else 'error'}: {each}", file=sys.stderr)
    if said and not options.draft:
        print("nothing was built; `make release DRAFT=1` builds this tree all the same", file=sys.stderr)
        return 1
    release = Release(ROOT / ("build/wheels" if options.wheels else "dist"), ROOT / "build/release")
    release.licences()
    archive = None if options.wheels else release.source()
    if not options.unguided:
        release.profile()
        if release.failures:
            print(f"error: {release.failures[-1]}; nothing was built", file=sys.stderr)
            return 1
    strict = options.wheels and os.environ.get("CI") == "true"
    for python in options.pythons or pythons():
        release.wheel(python, interpreter(python), strict)
    for python in options.untried:
        release.wheel(python, interpreter(python), False)
    if archive:
        release.wheel_of(archive)
    if not options.wheels:
        release.packages()
    release.metadata()
    print(release.table(), flush=True)
    for each in release.failures:
        print(f"error: {each}", file=sys.stderr)
    print(f"{len(release.failures)} checks failed" if release.failures else f"all in {release.out} passed")
    return 1 if release.failures else 0


if __name__ == "__main__":
    sys.exit(main())
