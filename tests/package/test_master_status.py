"""The master's side of the status process: its back-off, the states of workers, the address."""

import logging
import socket

import pytest
from harness.settings import server_settings
from harness.tools import need_module
from package.in_status import told, worker
from package.plan_bench import a_worker

from tailrace.errors import ConfigError
from tailrace.master import status, workers
from tailrace.master.companion import Backoff
from tailrace.master.status import States


def test_a_sampler_of_an_env_file_that_is_unknown_is_warned_of(tmp_path, caplog):
    need_module("opentelemetry.exporter.otlp.proto.http")
    (tmp_path / "env").write_text("OTEL_TRACES_SAMPLER=sometimes\n")
    settings = server_settings(otlp_endpoint="http://127.0.0.1:4318", env_file=str(tmp_path / "env"))
    status.opened(settings, kept=lambda address: None)
    assert "--otlp-endpoint: OTEL_TRACES_SAMPLER='sometimes' is unknown" in caplog.text


def test_a_process_that_ends_again_and_again_is_replaced_later_and_later():
    backoff, now, waits = Backoff(), 100.0, []
    assert backoff.at <= now
    for _ in range(7):
        backoff.ended(now, now + 0.5)
        waits.append(backoff.at - now - 0.5)
        now = backoff.at
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    backoff.ended(now, now + 31)
    assert backoff.at == now + 31
    backoff.ended(now, now + 1)
    assert backoff.at == now + 2


def test_the_state_of_a_worker_has_the_time_of_its_change():
    states, worker = States(), a_worker()

    def of(phase):
        worker.phase = phase
        return states.of([worker])[0]

    starting = of(workers.Booting())
    assert starting.state == "starting"
    assert of(workers.Booting()) is starting
    serving = of(workers.Serving(1.0))
    assert (serving.state, serving.since > starting.since) == ("serving", True)
    assert of(workers.Hung(2.0)).state == "hung"
    assert of(workers.Killed()).state == "hung"
    assert of(workers.Draining(2.0)).state == "draining"
    assert of(workers.Killed()).state == "draining"
    assert states.of([]) == []


def opened(text, kept=lambda address: None, option="status"):
    return status.opened(server_settings(**{"app": "shop:app", option: text}), kept=kept)


@pytest.mark.parametrize("option", ["status", "haproxy_agent"])
@pytest.mark.parametrize("text", ["fd://3", "nonsense", "http://127.0.0.1:9000", "127.0.0.1:99999"])
def test_a_text_that_is_no_address_is_a_mistake_in_the_settings(text, option):
    with pytest.raises(ConfigError, match=rf"^--{option.replace('_', '-')} "):
        opened(text, option=option)


def test_an_address_that_cannot_be_opened_is_one_warning(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert opened(f"127.0.0.1:{taken.getsockname()[1]}") is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "--bind" not in record.getMessage()


def test_the_socket_of_the_predecessor_is_used():
    with socket.create_server(("127.0.0.1", 0)) as kept:
        descriptor = socket.dup(kept.fileno())
        found = opened("127.0.0.1:1", {"127.0.0.1:1": descriptor}.get)
        assert found.listeners[0].socket.getsockname() == kept.getsockname()
        found.close()


class Forked:
    """A status process that lives."""

    pid = 4711

    def reap(self):
        return None

    def end(self):
        pass


@pytest.mark.parametrize("option", ["status", "haproxy_agent"])
@pytest.mark.parametrize("program", [None, "/usr/bin/py-spy"])
def test_the_start_line_says_once_what_status_cannot_show(monkeypatch, caplog, option, program):
    monkeypatch.setattr("tailrace.stacks.pyspy.program", lambda: program)
    monkeypatch.setattr(status.Status, "_fork", lambda *arguments: Forked())
    found = opened("127.0.0.1:0", option=option)
    found.publish(told(worker()), 8)
    with caplog.at_level(logging.INFO, logger="tailrace"):
        for now in (0.0, 1.0):
            found.tend(None, now, lambda: None)
    found.close()
    (record,) = caplog.records
    assert record.levelname == "INFO"
    lacks = ", without Python stacks, which need `pip install 'tailrace[status]'`"
    assert record.getMessage().endswith(f"(process 4711){lacks * (option == 'status' and program is None)}")
