"""deploy/compose.yaml, for development on a Mac: it is valid, and its command does there what docs/develop.md says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.deployed import DEPLOY
from harness.operated import Operated
from harness.tools import need_module
from package.test_deploy_machines import settings_of
from server.probes import eventually

yaml = need_module("yaml")

GUIDE = (DEPLOY.parent / "docs/develop.md").read_text()
APP = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [{body!r}]
"""


@pytest.fixture
def service():
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    return service


def test_it_has_the_schema_of_compose():
    need_module("check_jsonschema")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_port_is_that_of_the_server_and_published_for_this_machine_alone(service):
    chosen = settings_of(service["command"])
    (port,) = service["ports"]
    host, published, inside = port.split(":")
    assert host == "127.0.0.1"
    # Every address of the container.
    assert chosen == {"app": '"shop.wsgi"', "bind": f'[":{inside}"]', "reload": "true"}
    assert f"http://{host}:{published}" in GUIDE


def test_the_folder_of_the_project_is_where_the_command_runs(service):
    (volume,) = service["volumes"]
    assert volume == f".:{service['working_dir']}"
    assert f"- {service['working_dir']}/node_modules" in GUIDE


def test_its_image_installs_what_reloads(service):
    text = service["build"]["dockerfile_inline"]
    found = need_module("dockerfile").parse_string(text)
    assert [each.cmd for each in found] == ["FROM", "COPY", "RUN"]
    assert found[1].value[0] == "requirements.txt"
    assert "tailrace[reload]" in text
    assert "tailrace[reload]" in GUIDE


def test_the_commands_of_the_guide_are_understood():
    (command,) = re.findall(r"^\$ docker compose run .* shop (tailrace .*)$", GUIDE, re.MULTILINE)
    assert settings_of(command.split())["debug"] == "true"


@pytest.mark.parametrize("more", [(), ("--debug",)], ids=["", "debug"])
def test_changes_are_noticed_without_the_help_of_the_kernel(service, tmp_path, more):
    need_module("watchfiles")
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "wsgi.py").write_text(APP.format(body=b"one"))
    # Polling compares whole seconds.
    os.utime(shop / "wsgi.py", (1_000_000_000, 1_000_000_000))
    name, application, bind, _, *options = service["command"]
    assert (name, bind) == ("tailrace", "--bind")
    environment = {key: str(value) for key, value in service["environment"].items()}
    with Operated(tmp_path, application, *options, *more, environment=environment) as server:
        server.serves().logged("watching the files in")
        assert server.get().body == b"one"
        opened = {link for pid in server.processes() for link in descriptors(pid)}
        assert any("eventpoll" in link for link in opened)
        assert not any("inotify" in link for link in opened)
        (shop / "wsgi.py").write_text(APP.format(body=b"the next one"))
        eventually(lambda: server.get().body == b"the next one", "the new code")
        assert not list(shop.glob("__pycache__/*")), "no file of the container is left in the project"
        assert server.stop() == 0


def descriptors(pid):
    """What the descriptors of a process are."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return found
