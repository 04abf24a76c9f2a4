"""What the pages for people who come from another server say of options, signals and hooks is what the code has."""

import re
import signal

import pytest
from harness.pages import DOCS, blocks, codes, rows, sections, text_of
from tailrace_tools.other_servers import find
from tailrace_tools.other_servers.rows import Effect, Server

from tailrace.cli.options import BY_NAME
from tailrace.worker import hooks

PAGES = sorted((DOCS / "coming-from").glob("*.md"))
EVERY = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
# The pages of servers that `tailrace migrate` reads.
SERVERS = {
    "gunicorn": Server.GUNICORN,
    "uwsgi": Server.UWSGI,
    "mod-wsgi": Server.MOD_WSGI,
    "granian": Server.GRANIAN,
    "waitress": Server.WAITRESS,
}
READ = pytest.mark.parametrize(("page", "server"), SERVERS.items())


def test_there_is_a_page_for_every_server_that_can_be_migrated():
    assert {page.stem for page in PAGES} == {*SERVERS, "nginx-unit"}
    assert {*SERVERS.values(), Server.OTHER} == set(Server)


@READ
def test_options_are_those_of_the_table(page, server):
    for theirs, ours, _ in rows(DOCS / f"coming-from/{page}.md", f"options: {server.value}"):
        for spelling in codes(theirs):
            entry = find.of(server, spelling)
            assert entry is not None, spelling
            assert entry.row.effect is Effect.OPTION, spelling
            assert entry.row.ours in codes(ours), spelling


def test_the_lines_of_the_project_are_those_that_the_command_prints():
    page = DOCS / "coming-from/gunicorn.md"
    (printed,) = [block.text for block in blocks(page) if block.marked("run") == "gunicorn-project"]
    for name, theirs, ours in rows(page, "project: gunicorn"):
        assert f"{name.strip('`')}:1\n  - {theirs.strip('`')}\n  + {ours.strip('`')}\n" in printed, name


UNITS = {"": 1, "s": 1, "bytes": 1, "KiB": 1 << 10, "GiB": 1 << 30}


@EVERY
def test_defaults_are_those_of_the_code(page):
    (server,) = re.findall(r"^<!-- options: (.*) -->$", page.read_text(), re.MULTILINE)
    checked = 0
    for _, ours, difference in rows(page, f"options: {server}"):
        stated = re.match(r"([\d,]+|none) ?(\w*) by default", difference)
        if stated is None:
            continue
        value = 0 if stated[1] == "none" else int(stated[1].replace(",", "")) * UNITS[stated[2]]
        assert BY_NAME[codes(ours)[0]].default == value, difference
        checked += 1
    assert checked


@READ
def test_the_page_links_the_whole_table(page, server):
    text = (DOCS / f"coming-from/{page}.md").read_text()
    assert f"(../migrate.md#{server.value.lower()})" in text


def test_options_of_a_server_that_cannot_be_migrated_exist():
    lines = [line for _, line in text_of(DOCS / "coming-from/nginx-unit.md")]
    linked = {name for line in lines for name in re.findall(r"\[`(\w+)`\]\(\.\./options\.md", line)}
    assert linked
    assert linked <= set(BY_NAME)


@EVERY
def test_signals_exist(page):
    for row in rows(page, "signals"):
        for name in row[0].split(", "):
            assert f"SIG{name}" in signal.Signals.__members__


def places():
    """Where each hook runs, as its entry says: master or worker."""
    found = {
        name: re.search(r"- Runs in: the (\w+)", text)
        for name, text in sections(DOCS / "reference/hooks.md", 2).items()
    }
    return {name: place[1] for name, place in found.items() if place}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "nginx-unit"], ids=lambda page: page.stem)
def test_hooks_have_their_signatures_and_processes(page):
    for _, ours, place in rows(page, "hooks"):
        named = [found for code in codes(ours) if (found := re.fullmatch(r"(\w+)\((\w*)\)", code))]
        for each in named:
            assert hooks._ARGUMENT[each[1]] == each[2], each[0]
        if named:
            stated = set(place.partition(", after")[0].split(", "))
            assert stated == {places()[each[1]] for each in named}, ours


def test_the_hooks_of_gunicorn_are_those_of_the_table():
    for theirs, ours, _ in rows(DOCS / "coming-from/gunicorn.md", "hooks"):
        for spelling in codes(theirs):
            entry = find.setting(spelling.partition("(")[0])
            assert entry is not None, spelling
            if codes(ours):
                assert codes(ours)[0] in codes(entry.row.says), spelling
            else:
                assert entry.row.effect is Effect.ELSEWHERE, spelling
