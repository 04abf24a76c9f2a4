"""Writes the table of docs/compatibility.md from docs/compatibility.json; `--check` only says whether it is up to date.

    python tools/compatibility.py [--check]
    python tools/compatibility.py --run [NAME ...]       # install, start and drive these applications, or all
    python tools/compatibility.py --record [NAME ...]    # the same, and write the results to both files

An application runs unmodified at its newest version, in an environment of its own in target/compatibility. If it fails,
the same client drives it under gunicorn: then the report says whose failing it is. Exit status of a run: 1 if an
application fails that does not fail under gunicorn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from compatibility_drivers import APPLICATIONS, OF_THE_TESTS, PASSWORD, Application

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import pytest  # noqa: E402 - so are these, of the tests
from harness.addresses import free_address  # noqa: E402
from harness.peers import PEER  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.status import answer  # noqa: E402

RESULTS: Final = ROOT / "docs" / "compatibility.json"
PAGE: Final = RESULTS.with_suffix(".md")
TABLE: Final = re.compile(r"(?<=<!-- applications -->\n).*(?=<!-- end of applications -->)", re.DOTALL)
ENVIRONMENTS: Final = ROOT / "target" / "compatibility"
THREADS: Final = 4


def environment_of(application: Application) -> Path:
    """The directory of programs of an environment with the newest application and this checkout."""
    folder = ENVIRONMENTS / application.key
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "tailrace.pth").write_text(f"{ROOT}\n")
    needed = ("click", "python-dotenv", "tomli", "httpx", "gunicorn", "pastedeploy", *application.packages)
    pip = (folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade")
    subprocess.run([*pip, *needed], check=True)
    return folder / "bin"


def run(application: Application) -> dict[str, Any]:
    """Starts an application and drives it; its row of the results."""
    programs = environment_of(application)
    list_ = [str(programs / "pip"), "list", "--format=json", "--disable-pip-version-check"]
    installed = {each["name"].lower(): each["version"] for each in json.loads(subprocess.check_output(list_))}
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        done = drive(application, programs, Path(folder))
    package = application.packages[0].partition("[")[0]
    return {
        "application": application.name,
        "version": f"{package} {installed[package]}",
        "command": f"tailrace {quoted(application)} --workers {workers_of(application)} --threads {THREADS}",
        "python": platform.python_version(),
        "tailrace": version("tailrace"),
        "client": application.client,
        **done,
        "note": application.why_one and f"one worker: {application.why_one}",
    }


def drive(application: Application, programs: Path, folder: Path) -> dict[str, Any]:
    """Prepares its directory, starts the server there and its client beside it."""
    os.symlink(ROOT / "tests", folder / "tests")
    for site in ("django_site", "pyramid_site"):
        shutil.copytree(ROOT / "tests/apps" / site, folder / site)
    for name, text in application.files.items():
        (folder / name).write_text(text)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD[1],
        "HGRCPATH": os.devnull,
        **application.environment,
    }
    for command in application.setup:
        subprocess.run(command, cwd=folder, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)
    status = free_address()
    options: dict[str, Any] = {} if PEER else {"workers": workers_of(application), "status": status}
    failure, driven, requests = "", list[str](), 0
    try:
        with Server(
            application.target,
            python=str(programs / "python"),
            directory=folder,
            environment=environment,
            threads=THREADS,
            **options,
        ) as server:
            (folder / "client").mkdir()
            client = subprocess.run(
                [
                    programs / "python",
                    Path(__file__).with_name("compatibility_drivers.py"),
                    application.key,
                    server.url,
                ],
                cwd=folder / "client",
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                check=False,
                timeout=600,
            )
            failure, driven = (json.loads(client.stdout)[name] for name in ("failure", "driven"))
            if failure:
                sys.stderr.write(server.log)
            requests = 0 if PEER else answer(status, "/status.json")["totals"]["requests"]  # type: ignore[no-untyped-call]
    except (OSError, ValueError, subprocess.TimeoutExpired, pytest.fail.Exception) as error:
        print(error, file=sys.stderr)
        failure = failure or "the server does not start, or does not end as it should"
    return {"driven": driven, "requests": requests, "failure": failure}


def under_peer(application: Application) -> str:
    """What fails when gunicorn serves the application instead."""
    environment = {**os.environ, "TAILRACE_TEST_PEER": "gunicorn"}
    command = [sys.executable, __file__, "--run", application.key]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.partition("FAILED: ")[2].strip()


def workers_of(application: Application) -> int:
    """How many workers the server has."""
    return 1 if application.why_one else 2


def quoted(application: Application) -> str:
    """The target as a shell needs it, and without the directory of the tests."""
    target = application.target.removeprefix(OF_THE_TESTS)
    return f'"{target}"' if "(" in target else target


def run_all(applications: list[Application], is_recorded: bool) -> int:
    """Runs applications; the exit status."""
    status, rows = 0, {row["application"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for application in applications:
        print(f"{application.name} ...", flush=True)
        row = rows[application.name] = run(application)
        row["gunicorn"] = under_peer(application) if row["failure"] and not PEER else ""
        status |= bool(row["failure"]) and row["failure"] != row["gunicorn"]
        failed = f"FAILED: {row['failure']}" if row["failure"] else "passed"
        if row["gunicorn"]:
            print(f"under gunicorn: {row['gunicorn']}", flush=True)
        print(f"{row['version']}: {len(row['driven'])} operations, {row['requests']} requests, {failed}", flush=True)
    if is_recorded:
        # Those that are no longer in the table of applications leave the results.
        kept = [rows[each.name] for each in APPLICATIONS if each.name in rows]
        RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page())
    return int(status)


def page() -> str:
    """The text of the page with a fresh table. Raises ValueError if it has no place for it."""
    text = PAGE.read_text()
    if not TABLE.search(text):
        raise ValueError(f"{PAGE} has no place for its table")
    rows = "".join(row_of(result) for result in json.loads(RESULTS.read_text()))
    head = "| application | result | client | what it did | command |\n|---|---|---|---|---|\n"
    return TABLE.sub(lambda _: f"\n{head}{rows}\n", text)


def row_of(result: dict[str, Any]) -> str:
    """The row of an application."""
    driven = result["driven"]
    did = "; ".join(driven) if len(driven) < 15 else f"{len(driven)} tests of its suite"
    outcome = "passes"
    if result["failure"]:
        same = result["failure"] == result["gunicorn"]
        outcome = f"**fails**{', as under gunicorn' * same}: {result['failure']}"
    outcome += f" ({result['note']})" if result["note"] else ""
    name, _, number = result["version"].rpartition(" ")
    command = result["command"].replace(f" --threads {THREADS}", "").removeprefix("tailrace ")
    return (
        f"| {result['application']}<br>{name} {number} | {outcome} | {result['client']}, {result['requests']} requests"
        f" | {did} | `{command}` |\n"
    )


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.run or arguments.record:
        chosen = [each for each in APPLICATIONS if not arguments.names or each.key in arguments.names]
        return run_all(chosen, arguments.record)
    fresh = page()
    if not arguments.check:
        PAGE.write_text(fresh)
    elif PAGE.read_text() != fresh:
        print("docs/compatibility.md is out of date; run `python tools/compatibility.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
