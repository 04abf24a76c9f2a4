"""What the log says about the machine."""

import logging
from pathlib import Path

import pytest
from harness.settings import server_settings

from tailrace.system import sockets
from tailrace.system.binds import parse_all, parse_published
from tailrace.system.cgroup import Machine
from tailrace.worker.announce import announce, announce_machine

MIB = 1 << 20


@pytest.mark.parametrize(
    ("machine", "chosen", "workers", "line"),
    [
        (Machine(8), {}, 1, None),
        (Machine(8, quota=2.0), {"workers": 4}, 4, None),
        (Machine(8), {"workers": "auto"}, 8, "8 CPUs: 8 workers, 512 MiB of client memory each"),
        (
            Machine(80, 1.5, 512 * MIB),
            {"workers": "auto"},
            2,
            "1.5 CPUs (cgroup quota), 512 MiB (cgroup limit): 2 workers, 64 MiB of client memory each",
        ),
        (Machine(1, memory=512 * MIB), {}, 1, "1 CPU, 512 MiB (cgroup limit): 1 worker, 128 MiB of client memory"),
        (
            Machine(1, memory=512 * MIB),
            {"max_rss": "auto"},
            1,
            "1 CPU, 512 MiB (cgroup limit): 1 worker, 128 MiB of client memory; workers are replaced before 460 MiB "
            "are in use",
        ),
        (Machine(2, memory=512 * MIB), {}, 0, "2 CPUs, 512 MiB (cgroup limit): 128 MiB of client memory"),
    ],
)
def test_what_follows_from_the_machine_is_one_line(machine, chosen, workers, line, caplog, tmp_path):
    caplog.set_level(logging.INFO, "tailrace")
    (tmp_path / "memory.current").write_text("0")
    (tmp_path / "memory.stat").touch()
    machine = machine._replace(accounts=tmp_path)
    announce_machine(server_settings(machine=machine, **chosen), workers)
    assert caplog.messages == [line] * (line is not None)


@pytest.mark.parametrize("machine", [Machine(2), Machine(2, memory=MIB, accounts=Path("/nonexistent"))])
def test_without_a_limit_that_can_be_watched_a_size_is_asked_for(machine, caplog):
    announce_machine(server_settings(machine=machine, max_rss="auto"))
    assert caplog.messages == ["--max-rss auto has no effect: no cgroup limits the memory; set --max-rss to a size"]


def test_a_limit_that_is_not_understood_is_one_warning_with_the_remedy(caplog):
    announce_machine(server_settings(machine=Machine(2, fault="cannot understand /sys/fs/cgroup/cpu.max")))
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage() == (
        "cannot understand /sys/fs/cgroup/cpu.max, so this limit is ignored; set --workers and --client-memory to what "
        "the container may use"
    )


def test_addresses_for_publications_are_not_shown_as_those_of_the_application(caplog):
    caplog.set_level(logging.INFO, "tailrace")
    with sockets.bound([*parse_all(["127.0.0.1:0"]), *parse_published(["127.0.0.1:0", "0.0.0.0:0"])]) as listeners:
        announce(server_settings(app="app:app"), None, listeners)
        ports = [each.socket.getsockname()[1] for each in listeners]
    said = [each for each in caplog.records if " on " in each.getMessage() or each.levelno == logging.WARNING]
    assert [each.getMessage() for each in said] == [
        f"listening on http://127.0.0.1:{ports[0]}",
        f"accepting publications on http://127.0.0.1:{ports[1]}/publish/",
        f"accepting publications on http://127.0.0.1:{ports[2]}/publish/ and every other address of this machine",
        "--publish-bind 0.0.0.0:0: anyone who can reach this address from another machine can publish; bind a loopback "
        "address or a UNIX socket, or have a firewall protect it",
    ]
