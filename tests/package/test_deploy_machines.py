"""What deploy/ has for systemd, containers and Kubernetes: each file is valid, and says what Tailrace understands."""

import json
import re
import shlex
import signal
import subprocess
import sys

from harness.addresses import free_address
from harness.deployed import DEPLOY, deployed
from harness.pages import DOCS, blocks
from harness.programs import tailrace
from harness.server import Server
from harness.tools import need_module, need_tool
from package.in_status import Board, shared, worker
from package.test_status_pages import families, get
from server.probes import eventually, waiting

yaml = need_module("yaml")

COMMAND = "/srv/shop/venv/bin/tailrace"


def objects():
    """Those of kubernetes.yaml, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def settings_of(command):
    """What Tailrace understands of a command line: each option as `config` shows it."""
    name, *arguments = command
    assert name.rpartition("/")[2] == "tailrace"
    done = tailrace("config", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return dict(re.findall(r"^(\w+) = (.*?) +# command line", done.stdout, re.MULTILINE))


def test_the_units_are_valid_and_their_command_is_understood(tmp_path):
    (tmp_path / "shop.service").write_text(deployed("tailrace.service", {COMMAND: sys.executable}))
    (tmp_path / "shop.socket").write_text(deployed("tailrace.socket", {}))
    done = subprocess.run(
        [need_tool("systemd-analyze"), "verify", "shop.service", "shop.socket"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # What it does not understand is a line, and the status is 0 nevertheless.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (command,) = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "tailrace.service").read_text(), re.MULTILINE)
    assert settings_of(shlex.split(command)) == {
        "app": '"shop.wsgi"',
        "workers": '"auto"',
        "status": '"127.0.0.1:9000"',
        "haproxy_agent": '"127.0.0.1:9001"',
    }


def instructions():
    return need_module("dockerfile").parse_file(str(DEPLOY / "Containerfile"))


def test_the_image_serves_as_another_user_than_root():
    found = instructions()
    last = max(number for number, each in enumerate(found) if each.cmd == "FROM")
    values = {each.cmd: each for each in found[last:]}
    # `nonroot` of the distroless images.
    assert values["USER"].value == ("65532:65532",)
    # The exec form: the master is process 1, and gets the signal of a stop.
    assert values["CMD"].json
    assert values["STOPSIGNAL"].value == ("SIGTERM",)
    found = settings_of(values["CMD"].value)
    assert {found["bind"], found["status"]} == {'[":8000"]', '":9000"'}
    assert set(values["EXPOSE"].value) == {"8000", "9000"}
    # There is no shell to run anything, and the entry point of the image would run Python.
    assert "RUN" not in values
    assert values["ENTRYPOINT"].value == ()


def test_the_guide_shows_instructions_of_the_file():
    (shown,) = [each for each in blocks(DOCS / "guides/containers.md") if each.title.startswith("Containerfile")]
    file = [(each.cmd, each.flags, each.value) for each in instructions()]
    guide = [(each.cmd, each.flags, each.value) for each in need_module("dockerfile").parse_string(shown.text)]
    assert [each for each in file if each in guide] == guide


def test_the_health_check_of_the_image_says_whether_the_server_is_ready(tmp_path):
    (check,) = [each.value for each in instructions() if each.cmd == "HEALTHCHECK"]
    status = free_address()
    assert check[:2] == ("CMD", "python")
    assert "127.0.0.1:9000" in check[-1]
    command = [sys.executable, *(part.replace("127.0.0.1:9000", status.bind) for part in check[2:])]

    def is_healthy():
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    assert not is_healthy()
    with Server("srv_processes:app", status=status) as server:
        eventually(is_healthy, "health")
        with waiting(server, tmp_path) as client:
            server.send_signal(signal.SIGTERM)
            eventually(lambda: not is_healthy(), "the drain")
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"


def test_the_manifests_have_the_schema_of_kubernetes():
    validate = need_module("kubernetes_validate")
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert len(found) == len(objects()) == 5
    for each in found:
        # strict: a key that is not known is an error.
        validate.validate(each, validate.latest_version(), strict=True)


def test_the_pods_are_asked_what_tailrace_answers_and_stop_in_time():
    pod = objects()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    chosen = settings_of(container["args"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (chosen["bind"], chosen["status"]) == (f'[":{ports["http"]}"]', f'":{ports["status"]}"')
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert probe["port"] == "status"
        assert get(Board({}), probe["path"])[0] == "200 OK"
    # A server that drains is alive and not ready.
    for name, status in (("readinessProbe", "503 Service Unavailable"), ("livenessProbe", "200 OK")):
        path = container[name]["httpGet"]["path"]
        assert get(Board({}), path, shared(worker(), stopping=True))[0] == status
    assert "lifecycle" not in container
    # --graceful-timeout, and 5 s until a worker that has not ended is killed.
    assert pod["terminationGracePeriodSeconds"] >= float(chosen["shutdown_delay"]) + 20 + 5
    (port,) = objects()["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports


def test_the_pods_are_scaled_by_a_metric_that_there_is():
    names = {sample.name for family in families(Board({}), shared(worker())) for sample in family.samples}
    (metric,) = objects()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert name in names
    (rule,) = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    series, _, labels = rule["seriesQuery"].partition("{")
    assert series == rule["name"]["as"] == name
    assert re.fullmatch(rule["name"]["matches"], name)
    # The rule asks for the labels that it makes resources of.
    assert {f"{label}" for label in rule["resources"]["overrides"]} == set(re.findall(r'(\w+)!=""', labels))
    annotations = objects()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9000"
    assert json.dumps(annotations).count("/metrics") == 1
