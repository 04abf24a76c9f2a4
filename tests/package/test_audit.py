"""tools/audit.py: what it makes of the reports of pip and pip-audit, and its exit status."""

import sys

import pytest
from harness.programs import module_of

audit = module_of("tools/audit.py")


def test_what_pip_would_install_is_audited_in_exactly_these_versions(audit):
    report = {
        "install": [{"metadata": {"name": "click", "version": "8.1.8"}}, {"metadata": {"name": "six", "version": "1"}}]
    }
    assert audit.pinned(report) == "click==8.1.8\nsix==1\n"


def test_a_vulnerability_is_a_finding_and_an_unknown_package_is_not_checked(audit):
    known = {"id": "PYSEC-2024-1", "fix_versions": ["8.1.9", "8.2"], "aliases": [], "description": ""}
    document = {
        "dependencies": [
            {"name": "click", "version": "8.1.8", "vulns": [known, {"id": "GHSA-1", "fix_versions": []}]},
            {"name": "tomli", "version": "2.0", "vulns": []},
            {"name": "six", "skip_reason": "Dependency not found on PyPI and could not be audited: six (1)"},
        ]
    }
    assert audit.verdict(document) == audit.Verdict(
        ["click 8.1.8: PYSEC-2024-1, fixed in 8.1.9, 8.2", "click 8.1.8: GHSA-1, not fixed yet"],
        ["vulnerabilities of six: Dependency not found on PyPI and could not be audited: six (1)"],
    )


@pytest.mark.parametrize(
    ("findings", "unchecked", "arguments", "status"),
    [
        ([], [], [], 0),
        ([], [], ["--strict"], 0),
        (["click is vulnerable"], [], [], 1),
        ([], ["the database is out of reach"], [], 0),
        ([], ["the database is out of reach"], ["--strict"], 1),
    ],
)
def test_what_cannot_be_checked_is_said_and_fails_only_when_asked(
    audit, monkeypatch, capsys, findings, unchecked, arguments, status
):
    monkeypatch.setattr(audit, "crates", lambda: audit.Verdict(findings, []))
    monkeypatch.setattr(audit, "packages", lambda: audit.Verdict([], unchecked))
    monkeypatch.setattr(sys, "argv", ["audit.py", *arguments])
    assert audit.main() == status
    said = capsys.readouterr()
    assert f"{len(findings)} findings, {len(unchecked)} not checked\n" in said.out
    level = "error" if arguments else "warning"
    assert said.err == "".join(
        [*(f"error: {each}\n" for each in findings), *(f"{level}: not checked: {each}\n" for each in unchecked)]
    )


def test_crates_without_a_database_of_advisories_are_checked_for_the_rest(audit, monkeypatch):
    ran = []

    def run(*command):
        ran.append(command[1:])
        failed = "fetch" in command
        return audit.subprocess.CompletedProcess(
            command, int(failed), "", "error: no route to host\n" if failed else ""
        )

    monkeypatch.setattr(audit, "_run", run)
    assert audit.crates() == audit.Verdict([], ["vulnerabilities of crates: error: no route to host"])
    assert ("deny", "--locked", "check", "licenses", "bans", "sources") in ran
    assert not any("advisories" in each for each in ran)
