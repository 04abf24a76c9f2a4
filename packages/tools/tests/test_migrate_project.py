"""`tailrace migrate DIRECTORY`: which lines of a project are found, what replaces them, and what is only named."""

import os
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from harness.toml import parse_toml
from tailrace_tools.migrate import main, project

from tailrace.cli.options import OPTIONS
from tailrace.cli.settings import resolve
from tailrace.command import cli
from tailrace.errors import ConfigError

COMMANDS = sorted((Path(__file__).parent / "data" / "migrate").glob("*.cmd"))
# Each project: its files, and lines of the report, in their order.
PROJECTS = {
    "cookiecutter-django": (
        {
            "compose/production/django/Dockerfile": """\
                FROM docker.io/python:3.12.8-slim-bookworm AS python
                FROM python AS python-run-stage
                COPY --chown=django:django ./compose/production/django/start /start
                RUN sed -i 's/\\r$//g' /start
                ENTRYPOINT ["/entrypoint"]
            """,
            "compose/production/django/start": """\
                #!/bin/bash

                set -o errexit
                set -o pipefail
                set -o nounset


                python /app/manage.py collectstatic --noinput

                exec /usr/local/bin/gunicorn config.wsgi --bind 0.0.0.0:5000 --chdir=/app
            """,
            "docker-compose.production.yml": """\
                services:
                  django:
                    image: shop_production_django
                    command: /start
            """,
            "requirements/production.txt": "-r base.txt\n\ngunicorn==23.0.0  # https://github.com/benoitc/gunicorn\n",
        },
        """\
            compose/production/django/start:10
              - exec /usr/local/bin/gunicorn config.wsgi --bind 0.0.0.0:5000 --chdir=/app
              + exec /usr/local/bin/tailrace config.wsgi --chdir /app --bind 0.0.0.0:5000 --trusted-proxies
              by hand: threads: 1, as with gunicorn
              by hand: trusted_proxies: add the address of the proxy
            requirements/production.txt:3
              - gunicorn==23.0.0  # https://github.com/benoitc/gunicorn
              + tailrace  # https://github.com/benoitc/gunicorn
            2 places to change, 0 to look at. No file was changed.
        """,
    ),
    "Heroku": (
        {
            "Procfile": """\
                release: ./manage.py migrate --no-input
                web: gunicorn --config gunicorn.conf.py gettingstarted.wsgi
                worker: celery -A shop worker
            """,
            "gunicorn.conf.py": """\
                import os
                port = os.environ.get("PORT", 5006)
                bind = f"0.0.0.0:{port}"
                worker_class = "gthread"
                threads = 20
            """,
            "Pipfile": '[packages]\ndjango = "*"\ngunicorn = "*"\n',
        },
        """\
            Procfile:2
              - web: gunicorn --config gunicorn.conf.py gettingstarted.wsgi
              + web: tailrace gettingstarted.wsgi
            gunicorn.conf.py
              - gunicorn.conf.py
              + tailrace.toml
              by hand: run `tailrace migrate gunicorn.conf.py > tailrace.toml`
            Pipfile:3
              - gunicorn = "*"
              + tailrace = "*"
        """,
    ),
    "systemd, from gunicorn's documentation": (
        {
            "deploy/gunicorn.service": """\
                [Unit]
                Description=gunicorn daemon
                Requires=gunicorn.socket
                After=network.target

                [Service]
                Type=notify
                NotifyAccess=main
                User=someuser
                RuntimeDirectory=gunicorn
                WorkingDirectory=/home/someuser/applicationroot
                ExecStart=/usr/bin/gunicorn \\
                    --access-logformat "%%(h)s" \\
                    --workers ${WORKERS} \\
                    applicationname.wsgi
                ExecReload=/bin/kill -s HUP $MAINPID
            """,
        },
        """\
            deploy/gunicorn.service:12
              + ExecStart=/usr/bin/tailrace applicationname.wsgi --workers ${WORKERS} --threads 1 --access-log-format
              by hand: $WORKERS: check the value, which is now that of --workers
            1 place to change, 0 to look at. No file was changed.
        """,
    ),
    "Cloud Run": (
        {
            "Dockerfile": """\
                FROM python:3.13-slim
                RUN pip install Flask gunicorn>=23,<24 && \\
                    pip cache purge
                ENV GRANIAN_PORT=80
                CMD exec gunicorn --bind :$PORT --bind "$OTHER" --workers 1 --threads 8 \\
                    # comment
                    --timeout 0 main:app
            """
        },
        """\
            Dockerfile:5
              + CMD exec tailrace main:app --bind :$PORT --bind $OTHER --trusted-proxies
            Dockerfile:2
              + RUN pip install Flask tailrace && \\
            Dockerfile:4
              by hand: Tailrace ignores GRANIAN_PORT: remove the line
        """,
    ),
    "ENTRYPOINT with CMD": (
        {
            "api.dockerfile": """\
                FROM python AS development
                CMD ["sh", "-c", "flask db upgrade && gunicorn -w $N 'api:create_app()'"]
                FROM development
                ENV GUNICORN_CMD_ARGS="--access-logfile -" WORKERS=3
                ENTRYPOINT ["gunicorn", "-k", "gthread"]
                CMD ["-w", "$WORKERS", "api:app"]
            """
        },
        """\
            api.dockerfile:2
              + CMD ["sh", "-c", "flask db upgrade && tailrace 'api:create_app()' --workers $N --threads 1"]
            api.dockerfile:5
              - ENTRYPOINT ["gunicorn", "-k", "gthread"]
              - CMD ["-w", "$WORKERS", "api:app"]
              + ENTRYPOINT ["tailrace"]
              + CMD ["api:app", "--workers", "$WORKERS", "--access-log", "-"]
            api.dockerfile:4
              ? ENV GUNICORN_CMD_ARGS="--access-logfile -" WORKERS=3
              by hand: Tailrace ignores GUNICORN_CMD_ARGS: remove the line
        """,
    ),
    "Compose": (
        {
            "compose.yaml": """\
                services:
                  web:
                    command: bash -c "./manage.py migrate && gunicorn shop.wsgi -b 0.0.0.0:8000 -w $$N"
                    environment: {N: 2}
                  list:
                    command:
                      # of the image
                      - gunicorn
                      - "--bind=0.0.0.0:80"
                      - 'shop:app'
                  flow:
                    entrypoint: ['waitress-serve', --port=80, "shop:app"]
                  folded:
                    command: >-
                      granian --interface wsgi
                      shop:app
                  quoted:
                    command: "gunicorn --access-logformat '%(h)s: %(s)s' shop:app"
                  alias:
                    x-command: &start gunicorn shop:app
                    command: *start
            """
        },
        """\
            compose.yaml:3
              + command: bash -c "./manage.py migrate && tailrace shop.wsgi --bind 0.0.0.0:8000
            compose.yaml:6
              - command: - gunicorn - "--bind=0.0.0.0:80" - 'shop:app'
              + command: ["tailrace", "shop:app", "--bind", "0.0.0.0:80"
            compose.yaml:12
              + entrypoint: ["tailrace", "shop:app", "--bind", "0.0.0.0:80"]
            compose.yaml:14
              + command: tailrace shop:app
            compose.yaml:18
              + command: "tailrace shop:app --threads 1 --access-log-format '%(h)s: %(s)s'"
            compose.yaml:20
              ? x-command: &start gunicorn shop:app
              by hand: not read
        """,
    ),
    "what is only named": (
        {
            "Dockerfile": 'FROM a\nCMD ["/usr/bin/supervisord", "-c", "/etc/supervisord.conf"]\n',
            "docker/supervisord.conf": "[program:gunicorn]\ncommand=gunicorn shop:app\n",
            "chart/templates/web.yaml": "kind: Deployment\nspec:\n  - name: gunicorn\n    args: [gunicorn, shop:app]\n",
            "package.json": '{"scripts": {"start": "gunicorn shop:app"}}\n',
            "requirements.txt": "gunicorn==23.0.0 \\\n    --hash=sha256:aa\n",
            "pyproject.toml": 'dependencies = ["django", "gunicorn[gevent,tornado]>=22,<24; python_version > \'3\'"]\n',
            "start.sh": "gunicorn 'shop:app\necho gunicorn starts\n",
        },
        """\
            start.sh:1
              ? gunicorn 'shop:app
              by hand: the command line cannot be split into words
            pyproject.toml:1
              + dependencies = ["django", "tailrace[gevent]; python_version > '3'"]
            requirements.txt:1
              + tailrace
              by hand: the file has hashes: generate it again
            package.json:1
              ? {"scripts": {"start": "gunicorn shop:app"}}
            chart/templates/web.yaml:4
              ? args: [gunicorn, shop:app]
            docker/supervisord.conf:2
              ? command=gunicorn shop:app
            Dockerfile:2
              by hand: not read: supervisord starts the server
            2 places to change, 5 to look at. No file was changed.
        """,
    ),
    "a settings file elsewhere": (
        {
            "start.sh": 'exec gunicorn -c conf/gunicorn.py -k gevent shop:app "$@" >> log 2>&1 # all\n',
            "Dockerfile": 'FROM a\nRUN pip wheel uwsgi\nCMD ["uwsgi", "/opt/shop/conf/uwsgi.ini:live"]\n',
            "conf/gunicorn.py": "workers = 2\ntimeout = 9\n",
            "run.sh": "if true; then uwsgi --ini conf/uwsgi.ini:live --processes 3; fi\n",
            "conf/uwsgi.ini": "[uwsgi]\nmodule = no:app\n[live]\nmodule = shop:app\nthreads = 4\n",
        },
        """\
            Dockerfile:3
              + CMD ["tailrace", "shop:app", "--config", "/opt/shop/conf/tailrace.toml"]
            run.sh:1
              + if true; then tailrace shop:app --config conf/tailrace.toml --workers 3; fi
            start.sh:1
              + exec tailrace shop:app --config conf/tailrace.toml --hang-timeout 9 --gevent "$@" >> log 2>&1 # all
              by hand: remove `request_timeout` from tailrace.toml, since this command overrides it
              by hand: remove `threads` from tailrace.toml, since this command overrides it
            conf/gunicorn.py
              by hand: run `tailrace migrate conf/gunicorn.py > conf/tailrace.toml`
            conf/uwsgi.ini:live
              by hand: run `tailrace migrate conf/uwsgi.ini:live > conf/tailrace.toml`
            Dockerfile:2
              + RUN pip wheel tailrace
        """,
    ),
}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(files):
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.mark.parametrize("name", PROJECTS)
def test_the_lines_of_a_project_have_replacements(name):
    files, wanted = PROJECTS[name]
    write(files)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    text = project.report(Path())
    at = 0
    for line in wanted.splitlines():
        line = line[12:]
        if not line.strip():
            continue
        at = text.find(line, at) + len(line)
        assert at >= len(line), f"{line}\n--- the report\n{text}"
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def settings_of(words):
    """What `tailrace` takes from these arguments."""
    context = cli.commands["serve"].make_context("serve", list(words), parent=click.Context(cli))
    names = {option.name for option in OPTIONS}
    given = {key: value for key, value in context.params.items() if key in names and value not in (None, ())}
    return resolve(given, {}, None)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_the_replacement_of_a_command_has_the_settings_of_its_tailrace_toml(path, directory):
    command = path.read_text()
    (directory / "start.sh").write_text(f"#!/bin/sh\n{command}\n")
    (replaced,) = re.findall(r"^  \+ (.*)$", project.report(Path()), re.MULTILINE)
    # As a shell does.
    words = shlex.split(re.sub(r"\$\{\w+:-(\w+)\}", r"\1", replaced.partition(" 2>")[0]))
    given = settings_of(words[next(place for place, word in enumerate(words) if word.endswith("tailrace")) + 1 :])
    for name, value in parse_toml(main.run(command)[0]).items():
        option = next(option for option in OPTIONS if option.name == name)
        # What a server trusts by default that listens on this machine only.
        is_local = name == "trusted_proxies" and given[name].value == ("unix", "127.0.0.0/8", "::1")
        assert is_local or given[name].value == option.kind.read(value), replaced


def test_environments_and_dependencies_are_not_searched(directory):
    for folder in ("node_modules/a", ".venv", ".git", "env", "web"):
        write({f"{folder}/Procfile": f"web: gunicorn {folder.strip('.')[:3]}:app\n"})
    write({"env/pyvenv.cfg": ""})
    text = project.report(directory)
    assert "1 place to change" in text
    assert "tailrace web:app" in text


def test_hostile_files_are_named_in_one_line_each(directory):
    write({"Procfile": "web: gunicorn a:b\n", "/".join("abcdefghij") + "/Procfile": "web: gunicorn deep:app\n"})
    (directory / "loop").symlink_to(".")
    (directory / "self.sh").symlink_to("self.sh")
    (directory / "zero.conf").symlink_to("/dev/zero")
    os.mkfifo(directory / "pipe.service")
    (directory / "binary.sh").write_bytes(b"gunicorn a:b\0")
    (directory / "program").write_bytes(b"\x7fELF\0")
    (directory / "latin.yml").write_bytes(b"command: gunicorn \xff\n")
    (directory / "large.yaml").write_text("a" * (1 << 20) + "b")
    write({"gunicorn.conf.py": "(", "uwsgi.ini": "[uwsgi]\nini = uwsgi.ini\n"})
    write({"odd.service": "[Service]\nEnvironment='\nExecStart=gunicorn a:b\n"})
    text = project.report(Path())
    assert re.findall(r"^not read: (\S+?):", text, re.MULTILINE) == [
        *("binary.sh", "large.yaml", "latin.yml", "odd.service", "pipe.service", "self.sh", "zero.conf"),
        *("a/b/c/d/e/f/g/h", "gunicorn.conf.py", "uwsgi.ini"),
    ]
    assert "deep:app" not in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "gunicorn " + "$(" * 200_000,
        "web: gunicorn a " * 5_000,
        'web: sh -c "' * 5_000 + "gunicorn a:b",
        "gunicorn a:b\n" * 20_000,
        "gunicorn" + "=!" * 100_000,
        "gunicorn " + "==1," * 2_400 + "!",
        "command: gunicorn \x1b[2J:app\n" * 1_000,
        "\n".join(" " * depth + "command: gunicorn a:b" for depth in range(1_000)),
        'CMD ["gunicorn", {"a": 1}, null, 2]\nENTRYPOINT [\nCMD []\nENTRYPOINT ["gunicorn"]\nCMD a \'b\n',
        "ENTRYPOINT " + "[" * 100_000,
    ],
    ids=range(10),
)
@pytest.mark.parametrize("name", ["Dockerfile", "compose.yml", "Procfile", "a.service", "a.sh", "requirements.txt"])
def test_odd_text_has_a_report_or_one_line(name, text, directory):
    (directory / name).write_text(text)
    result = CliRunner().invoke(cli, ["migrate", "."])
    assert result.exit_code == 0 or isinstance(result.exception, ConfigError), result.exception
    assert all(line.isprintable() and len(line) < 1_000 for line in result.output.split("\n"))
    assert result.output.count("\n") < 1_000


def test_a_folder_without_a_server_is_one_line(directory):
    write({"Procfile": "web: node index.js\n"})
    with pytest.raises(ConfigError, match=r"^no file in \. starts another server$"):
        project.report(Path())


def test_a_file_is_named_by_the_path_from_here(directory):
    write({"shop/Procfile": "web: gunicorn -c conf.py a:b\n", "shop/conf.py": "workers = 2\n"})
    result = CliRunner().invoke(cli, ["migrate", "shop"])
    assert result.exit_code == 0
    assert result.output.startswith("shop/Procfile:1\n")
    assert "by hand: run `tailrace migrate shop/conf.py > shop/tailrace.toml`" in result.output
