"""Every block, link, option and metric in the manual's pages is checked, by the program that it is for.

A marker in the line before a block says more: `run: SESSION` and `log: SESSION` (test_sessions.py runs it),
`incident: NAME, SERVER` (test_incidents.py runs it), `application: CALLABLE, PATH` (it is served here),
`not run: REASON` (its `tailrace` commands are checked all the same).
To list the last ones: pytest -rP -k say_why
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import click
import pytest
from docs.sessions import SESSIONS
from harness.pages import DOCS, ROOT, anchors, blocks, links, rows, spans
from harness.toml import parse_toml
from harness.tools import need_module, need_tool
from tailrace_tools.other_servers.table import TABLE

import tailrace
from tailrace.cli.arguments import OfPackage
from tailrace.cli.options import OPTIONS
from tailrace.cli.settings import resolve, without_effect
from tailrace.command import cli
from tailrace.status import table
from tailrace.system import binds
from tailrace.worker import hooks

# Pages whose blocks are checked.
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *(path for folder in ("guides", "coming-from", "reference") for path in sorted((DOCS / folder).glob("*.md"))),
    *(
        DOCS / f"{name}.md"
        for name in (
            *("index", "tutorial", "troubleshooting", "http", "status"),
            *("limitations", "configuration", "upgrading", "logging", "doctor", "processes"),
            *("production", "static", "gevent", "develop", "faq", "incidents"),
        )
    ),
]
# Pages whose links are checked.
LINKED = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
EVERY = pytest.mark.parametrize("block", BLOCKS, ids=str)
# What starts a command with an agent, and the words before that command; tests/server/test_apm_agents.py runs them.
AGENTS = {"newrelic-admin": ["run-program"], "opentelemetry-instrument": []}
# Options of other programs, and of Tailrace's own commands, that the text names.
OTHER_FLAGS = {
    *("--cpus", "--cpuset-cpus", "--memory"),
    *("--http2-prior-knowledge", "--unix-socket", "--verbose", "--help", "--version", "--build"),
    *("--tool", "--cfg", "--now", "--inplace"),
    *("--nothreading", "--settings", "--pythonpath"),
    # Of other servers, and what there is not.
    *("--worker-connections", "--access-logfile", "--http-socket", "--daemon", "--keep-alive"),
}
# Commands that print facts about this machine, and change nothing.
HARMLESS = {"uname", "python3"}


def of(*languages):
    """Parametrizes a test with the blocks in these languages."""
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=str)


def checked(command, *, statuses=(0,), **given):
    """Runs a tool that must be satisfied; its output."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False, **given
    )
    assert done.returncode in statuses, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


# The command line


def simple_commands(line):
    """The words of each command of a line, without `sudo`, leading variables and a final redirection to a file."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
    lexer.whitespace_split = True
    found, words = [], []
    for word in lexer:
        if set(word) <= set("|;&"):
            found.append(words)
            words = []
        else:
            words.append(word)
    found.append(words)
    found = [words[:-2] if words[-2:-1] in ([">"], [">>"]) else words for words in found]
    for words in found:
        while words and (words[0] == "sudo" or re.match(r"\w+=", words[0])):
            words.pop(0)
    return [words for words in found if words]


def understood(words, directory, *, has_application=True):
    """Parses the arguments of `tailrace` as the command does. Raises ClickException or ConfigError.

    has_application: whether `serve` must name one; False where a settings file names it.
    """
    parent = click.Context(cli, info_name="tailrace")
    if words[:1] == ["help"] or words in (["--version"], ["--help"]):
        return
    name, command, left = "serve", cli.commands["serve"], list(words)
    if words and words[0] in cli.commands:
        name, left = words[0], list(words[1:])
        command = cli.commands[name]
    if isinstance(command, OfPackage):
        command = command.loaded()
    if isinstance(command, click.Group):
        name = left.pop(0)
        command = command.commands[name]
    try:
        context = command.make_context(name, left, parent=parent)
    except click.exceptions.Exit:
        return
    known = {option.name for option in OPTIONS}
    given = {key: value for key, value in context.params.items() if key in known and value not in (None, ())}
    chosen = resolve(given, {}, None, directory)
    binds.parse_all(chosen["bind"].value)
    if name == "serve":
        assert not without_effect(chosen, has_master=True)
        assert not has_application or chosen["app"].value, "no application"


def targets():
    return set(re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_pip(words):
    """`pip install` of what can be installed, with extras that there are."""
    extras = parse_toml((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for word in words[1:]:
        if word.startswith("--") or word.endswith(".txt"):
            continue
        found = re.fullmatch(r"(?P<name>\.|[\w.-]+)(?:\[(?P<extras>[\w,]+)\])?", word)
        assert found, word
        if found["name"] in (".", "tailrace") and found["extras"]:
            assert set(found["extras"].split(",")) <= set(extras), word


def check_command(words, directory, *, has_application=True):
    """True: the command is known here, and right."""
    name, arguments_ = Path(words[0]).name, words[1:]
    if name == "tailrace":
        understood(arguments_, directory, has_application=has_application)
    elif name in AGENTS and words[1 : len(AGENTS[name]) + 1] == AGENTS[name]:
        return check_command(words[len(AGENTS[name]) + 1 :], directory, has_application=has_application)
    elif name == "make":
        assert set(arguments_) <= targets(), words
    elif name == "pip":
        check_pip(arguments_)
    elif name in HARMLESS and len(words) == 2:
        checked(words)
    else:
        return False
    return True


@of("console")
def test_a_console_session_is_run_or_its_commands_are_understood(block, tmp_path):
    if (session := block.marked("run")) is not None:
        assert session in SESSIONS
    for command in block.commands:
        if "".join(command.printed).startswith("tailrace: error: no such option"):
            with pytest.raises(click.UsageError):
                check_command(simple_commands(command.line)[0], tmp_path)
            continue
        for words in simple_commands(command.line):
            # A session that runs has the settings file.
            is_known = check_command(words, tmp_path, has_application=session is None)
            is_run = any(block.marked(kind) for kind in ("run", "incident", "not run"))
            assert is_known or is_run, f"{words}: who checks this?"


@of("text")
def test_a_log_is_that_of_a_session(block):
    assert block.marked("log") in SESSIONS or block.marked("not run")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tailrace shop:app --request-time 30", "no such option"),
        ("tailrace shop:app --workers many", "must be a whole number"),
        ("tailrace shop:app --bind uwsgis://:443", "uwsgis is unknown"),
        ("tailrace threads --statu 127.0.0.1:9000", "did you mean --status"),
        ("tailrace shop:app --gevent --preload", "cannot be combined"),
    ],
)
def test_a_mistake_in_a_command_line_is_found(line, said, tmp_path):
    (words,) = simple_commands(line)
    with pytest.raises((click.ClickException, tailrace.ConfigError), match=said):
        check_command(words, tmp_path)


def test_every_block_has_a_language_and_a_marker_that_is_known():
    known = {"run", "log", "incident", "not run", "application", ""}
    languages = {
        *("console", "text", "python", "toml", "ini", "nginx", "haproxy", "apache", "caddyfile", "dockerfile", "yaml"),
        *("json", "javascript"),
    }
    wrong = [
        str(block) for block in BLOCKS if block.language not in languages or block.marker.partition(":")[0] not in known
    ]
    assert not wrong


def test_blocks_that_are_not_run_say_why():
    unrun = [(block, block.marked("not run")) for block in BLOCKS if block.marked("not run") is not None]
    for block, reason in unrun:
        print(f"{block}: {reason}")
    assert all(len(reason) > 10 for _, reason in unrun)
    # A page of commands that nobody runs is no page of ours.
    assert len(unrun) < len(BLOCKS) / 3


# The text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_more_than_400_lines(page):
    assert len(page.read_text().splitlines()) <= 400


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for number, target in links(page):
        if re.match(r"(https?|mailto):", target):
            continue
        where, _, anchor = target.partition("#")
        path = (page.parent / where).resolve() if where else page
        assert path.exists(), f"{page.name}:{number}: {target}: no such file"
        if anchor:
            assert anchor in anchors(path), f"{page.name}:{number}: {target}: no such heading"


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One\n\n[a](page.md#one) [b](other.md) [c](#two) `[d](code.md)`\n")
    assert links(page) == [(3, "page.md#one"), (3, "other.md"), (3, "#two")]
    assert anchors(page) == {"one"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_variables_and_metrics_in_the_text_exist(page):
    flags = {flag for option in OPTIONS for flag in (option.flag, option.short)} - {""} | OTHER_FLAGS
    commands = [each.loaded() if isinstance(each, OfPackage) else each for each in cli.commands.values()]
    flags |= {flag for command in commands for each in command.params for flag in each.opts}
    if page.parent.name == "coming-from":
        flags |= {flag for row in TABLE for _, name in row.each() for flag in name.flags}
    variables = {option.variable for option in OPTIONS} | {"TAILRACE_CONFIG", "TAILRACE_PORT"}
    variables |= {name for command in commands for each in command.params for name in each.envvar or ()}
    metrics = {metric.family for metric in table.TABLE}
    metrics |= {f"{metric.family}_bucket" for metric in table.TABLE if metric.kind == table.HISTOGRAM}
    for number, span in spans(page):
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
            known = flag in flags or flag.replace("--no-", "--") in flags
            assert known or "certbot" in span, f"{page.name}:{number}: {flag}"
        for variable in re.findall(r"\bTAILRACE_[A-Z_]+\b(?!\*)", span):
            assert variable in variables or span.endswith("*"), f"{page.name}:{number}: {variable}"
        for metric in re.findall(r"^tailrace_(?!tools\b)[a-z_]+", span):
            assert metric in metrics, f"{page.name}:{number}: {metric}"


@pytest.mark.parametrize("page", ["http", "troubleshooting"])
def test_sentences_of_refusals_are_those_of_the_server(page):
    sources = "".join(path.read_text() for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")))
    # As the compiler reads them.
    said = re.sub(r"\\\n\s*", "", sources).replace('\\"', '"')
    for row in rows(DOCS / f"{page}.md", "sentences"):
        (sentence,) = [cell.strip("`") for cell in row[:2] if cell.startswith("`") and cell.endswith(".`")]
        assert f'"{sentence}"' in said, sentence
        if row[0].isdigit():
            refusal = re.search(rf'\(\s*{row[0]},\s*"{re.escape(sentence)}"', said)
            assert refusal, f"{row[0]} {sentence}"


def test_limits_of_the_page_are_the_defaults_of_their_options():
    units = {"": 1, "s": 1, "bytes": 1, "bytes per second": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    options = {option.flag: option for option in OPTIONS}
    limits = [row[2:] for row in rows(DOCS / "http.md", "limits") if row[2] != "fixed"]
    for flag, default in limits:
        number, _, unit = default.partition(" ")
        assert int(number) * units[unit] == options[flag.strip("`")].default, flag
    assert len(limits) == 5


# Python


@of("python")
def test_python_compiles(block):
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marked("application")], ids=str)
def test_an_application_serves(block):
    name, path = block.marked("application").split(", ")
    found = {"__name__": "shop"}
    exec(compile(block.text, str(block), "exec"), found)
    with tailrace.serve_in_thread(found[name]) as server, urllib.request.urlopen(server.url + path) as response:
        assert response.status == 200
        assert response.read()


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.title == "hooks.py"], ids=str)
def test_hooks_are_hooks(block, tmp_path, caplog):
    (tmp_path / "hooks.py").write_text(block.text)
    found = hooks.read(str(tmp_path / "hooks.py"))
    assert found.functions
    assert not caplog.records


# Configurations


TOML = [block for block in BLOCKS if block.language == "toml"]


@pytest.mark.parametrize("block", [block for block in TOML if block.title == "logging.toml"], ids=str)
def test_a_configuration_of_logging_is_understood(block, tmp_path):
    # Each destination is a file here; logging is configured in a process of its own.
    text = re.sub(r'^destination = ".*"$', f'destination = "{tmp_path}/log"', block.text, flags=re.MULTILINE)
    (tmp_path / "logging.toml").write_text(text)
    apply = "import sys; from tailrace.logs import log_config; log_config.apply(sys.argv[1], 'info', '.')"
    assert checked([sys.executable, "-c", apply, str(tmp_path / "logging.toml")]) == ""
    assert (tmp_path / "log").exists()


@pytest.mark.parametrize("block", [block for block in TOML if block.title not in ("logging.toml", "fly.toml")], ids=str)
def test_settings_are_understood(block, tmp_path):
    (tmp_path / "tailrace.toml").write_text(block.text)
    chosen = resolve({}, {}, None, tmp_path)
    binds.parse_all(chosen["bind"].value)
    assert not without_effect(chosen, has_master=True)


@of("json")
def test_a_document_is_json(block):
    assert json.loads(block.text)


# Those that are no file of a session.
UNITS = [
    block
    for block in BLOCKS
    if block.language == "ini" and not any(block.title in session.files for session in SESSIONS.values())
]


@pytest.mark.parametrize("page", sorted({block.page for block in UNITS}), ids=str)
def test_units_are_valid_and_their_commands_understood(page, tmp_path):
    units = [block for block in UNITS if block.page == page]
    for unit in units:
        text = unit.text
        for line in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE):
            words = shlex.split(line)
            assert check_command(words, tmp_path), line
            text = text.replace(words[0], sys.executable)
        (tmp_path / Path(unit.title).name).write_text(text)
    said = checked([need_tool("systemd-analyze"), "verify", *(Path(unit.title).name for unit in units)], cwd=tmp_path)
    # What it does not understand is a line, and the status is 0 nevertheless.
    assert said == ""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a certificate and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    command = [need_tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop.example"]
    checked([*command, "-keyout", str(folder / "key"), "-out", str(folder / "certificate")])
    both = folder / "both.pem"
    both.write_text((folder / "certificate").read_text() + (folder / "key").read_text())
    return both


@of("nginx")
def test_nginx_takes_it(block, tmp_path, certificate):
    text = re.sub(r"/etc/ssl/shop/\w+\.pem", str(certificate), block.text)
    text = text.replace("include uwsgi_params;", "include /etc/nginx/uwsgi_params;")
    is_map = text.startswith("map ")
    if "server {" not in text and not is_map:
        text = f"server {{\n{text}\n}}"
    if "$connection_upgrade" in text and not is_map:
        # Of the block before.
        text += "map $http_upgrade $connection_upgrade { default upgrade; }\n"
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n"
        + "".join(f"{name}_temp_path {tmp_path}/{name};\n" for name in ("proxy", "fastcgi", "uwsgi", "scgi"))
        + f"client_body_temp_path {tmp_path}/body;\n{text}\n}}\n"
    )
    command = [need_tool("nginx"), "-t", "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)]
    said = checked([*command, "-e", "stderr"])
    assert not re.search(r"\[(warn|error|emerg)\]", said.replace("[warn] could not build optimal", "")), said


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.language == "haproxy"}), ids=str)
def test_haproxy_takes_it(page, tmp_path, certificate):
    text = "".join(block.text for block in blocks(page) if block.language == "haproxy")
    text = text.replace("/etc/haproxy/shop.pem", str(certificate))
    if "frontend " not in text:
        backend = re.search(r"^backend (\w+)", text, re.MULTILINE)[1]
        text += f"\nfrontend web\n    mode http\n    bind :80\n    default_backend {backend}\n"
    around = "defaults\n    timeout connect 2s\n    timeout client 60s\n    timeout server 60s\n"
    (tmp_path / "haproxy.cfg").write_text(f"global\n    maxconn 100\n{around}{text}")
    said = checked([need_tool("haproxy"), "-c", "-f", str(tmp_path / "haproxy.cfg")])
    assert "[WARNING]" not in said, said


@of("caddyfile")
def test_caddy_takes_it(block, tmp_path):
    (tmp_path / "Caddyfile").write_text(block.text)
    command = [need_tool("caddy"), "validate", "--adapter", "caddyfile", "--config", str(tmp_path / "Caddyfile")]
    said = checked(command, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert "Valid configuration" in said


@of("apache")
def test_apache_takes_it(block, tmp_path):
    modules = ("mpm_event", "authz_core", "headers", "proxy", "proxy_http", "proxy_uwsgi")
    (tmp_path / "apache.conf").write_text(
        f"ServerRoot {tmp_path}\nServerName test\nPidFile {tmp_path}/pid\nErrorLog {tmp_path}/error.log\nListen 80\n"
        + "".join(f"LoadModule {each}_module /usr/lib/apache2/modules/mod_{each}.so\n" for each in modules)
        + block.text
    )
    said = checked([need_tool("apache2"), "-t", "-f", str(tmp_path / "apache.conf")])
    assert "Syntax OK" in said


@of("dockerfile")
def test_an_image_has_instructions_that_there_are(block, tmp_path):
    parsed = need_module("dockerfile").parse_string(block.text)
    known = {
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "EXPOSE",
        "CMD",
        "HEALTHCHECK",
        "ENV",
        "STOPSIGNAL",
        "ENTRYPOINT",
    }
    assert {each.cmd.upper() for each in parsed} <= known
    (command,) = [each for each in parsed if each.cmd.upper() == "CMD"]
    assert command.json
    assert check_command(list(command.value), tmp_path)


def lists(value):
    """Every list in a document."""
    if isinstance(value, list):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from lists(each)


@of("yaml")
def test_a_document_is_that_of_its_program(block, tmp_path):
    document = need_module("yaml").safe_load(block.text)
    for each in lists(document):
        if each[:1] == ["tailrace"]:
            check_command(each, tmp_path)
    if "apiVersion" in document:
        validate = need_module("kubernetes_validate")
        validate.validate(document, validate.latest_version(), strict=True)
    elif "services" in document and isinstance(document["services"], dict):
        (tmp_path / "compose.yaml").write_text(block.text)
        (tmp_path / "Dockerfile").write_text("FROM scratch\n")
        command = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        need_tool(command[0])
        said = checked([*command, "-f", str(tmp_path / "compose.yaml"), "config"])
        assert set(need_module("yaml").safe_load(said)["services"]) == set(document["services"])
    else:
        assert block.marked("not run"), "which program reads this?"
        assert json.dumps(document)
