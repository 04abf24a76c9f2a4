"""Checks what Tailrace depends on: cargo-deny (deny.toml) for the crates, pip-audit for the Python packages.

    python tools/audit.py            # what cannot be checked, because its database is out of reach, is a warning
    python tools/audit.py --strict   # ... is a failure

Licences, sources and duplicates of crates need no network beyond the registry. Known vulnerabilities of crates are in
a git repository, those of Python packages in a service of the package index. The Python packages are those that `pip
install` would install today for `tailrace` with every extra. Exit status: 0 when nothing was found, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT: Final = Path(__file__).resolve().parent.parent
# Later versions may read deny.toml in another way.
CARGO_DENY: Final = "0.20.2"


class Verdict(NamedTuple):
    """findings: what is wrong. unchecked: what could not be checked, with the reason."""

    findings: list[str]
    unchecked: list[str]


def crates() -> Verdict:
    """cargo-deny on the crates of the workspace."""
    if _run("cargo", "deny", "--version").returncode:
        print(f"installing cargo-deny {CARGO_DENY}", flush=True)
        installed = _run("cargo", "install", "--quiet", "--locked", f"cargo-deny@{CARGO_DENY}")
        if installed.returncode:
            return Verdict([], [f"crates: cargo-deny could not be installed: {_last_line(installed.stderr)}"])
    findings, unchecked = [], []
    checked = _run("cargo", "deny", "--locked", "check", "licenses", "bans", "sources")
    print(checked.stdout + checked.stderr, end="", flush=True)
    if checked.returncode:
        findings.append("crates: licences, duplicates or sources, see above")
    if (fetched := _run("cargo", "deny", "--locked", "fetch", "db")).returncode:
        unchecked.append(f"vulnerabilities of crates: {_last_line(fetched.stderr)}")
        return Verdict(findings, unchecked)
    checked = _run("cargo", "deny", "--locked", "check", "--disable-fetch", "advisories")
    print(checked.stdout + checked.stderr, end="", flush=True)
    if checked.returncode:
        findings.append("crates: known vulnerabilities, see above")
    return Verdict(findings, unchecked)


def packages() -> Verdict:
    """pip-audit on the Python packages that users get."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    with tempfile.TemporaryDirectory() as directory:
        resolved, pins, audited = (Path(directory, name) for name in ("resolved.json", "pins.txt", "audited.json"))
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run")
        asked = _run(*pip, "--ignore-installed", "--only-binary", ":all:", "--report", str(resolved), *wanted)
        if asked.returncode:
            return Verdict([], [f"Python packages: pip cannot resolve them: {_last_line(asked.stderr)}"])
        pins.write_text(pinned(json.loads(resolved.read_text())))
        audit = (sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off")
        ran = _run(*audit, "--format", "json", "--output", str(audited), "--requirement", str(pins))
        if not audited.exists():
            return Verdict([], [f"vulnerabilities of Python packages: {_last_line(ran.stderr)}"])
        return verdict(json.loads(audited.read_text()))


def pinned(report: dict[str, Any]) -> str:
    """Requirements with exact versions of what `pip install --dry-run --report` would install."""
    chosen = [each["metadata"] for each in report["install"]]
    return "".join(f"{each['name']}=={each['version']}\n" for each in chosen)


def verdict(document: dict[str, Any]) -> Verdict:
    """What a report of pip-audit says. A package that the service does not know was not checked."""
    findings, unchecked = [], []
    for each in document["dependencies"]:
        if "skip_reason" in each:
            unchecked.append(f"vulnerabilities of {each['name']}: {each['skip_reason']}")
            continue
        for known in each["vulns"]:
            fixed = f"fixed in {', '.join(known['fix_versions'])}" if known["fix_versions"] else "not fixed yet"
            findings.append(f"{each['name']} {each['version']}: {known['id']}, {fixed}")
    return Verdict(findings, unchecked)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    """What matters of the output of a program that failed."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"


def main() -> int:
    """Runs all checks; the exit status."""
    parser = argparse.ArgumentParser(description="Checks what Tailrace depends on.")
    parser.add_argument("--strict", action="store_true", help="fail if something cannot be checked")
    options = parser.parse_args()
    verdicts = [crates(), packages()]
    findings = [each for one in verdicts for each in one.findings]
    unchecked = [each for one in verdicts for each in one.unchecked]
    for each in findings:
        print(f"error: {each}", file=sys.stderr)
    for each in unchecked:
        print(f"{'error' if options.strict else 'warning'}: not checked: {each}", file=sys.stderr)
    print(f"{len(findings)} findings, {len(unchecked)} not checked")
    return 1 if findings or (unchecked and options.strict) else 0


if __name__ == "__main__":
    sys.exit(main())
