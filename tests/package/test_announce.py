"""What the log says about the machine."""

import logging

import pytest
from harness.settings import server_settings

from tailrace.system.cgroup import Machine
from tailrace.worker.announce import announce_machine

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
        (Machine(2, memory=512 * MIB), {}, 0, "2 CPUs, 512 MiB (cgroup limit): 128 MiB of client memory"),
    ],
)
def test_what_follows_from_the_machine_is_one_line(machine, chosen, workers, line, caplog):
    caplog.set_level(logging.INFO, "tailrace")
    announce_machine(server_settings(machine=machine, **chosen), workers)
    assert caplog.messages == [line] * (line is not None)


def test_a_limit_that_is_not_understood_is_one_warning_with_the_remedy(caplog):
    announce_machine(server_settings(machine=Machine(2, fault="cannot understand /sys/fs/cgroup/cpu.max")))
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage() == (
        "cannot understand /sys/fs/cgroup/cpu.max, so this limit is ignored; set --workers and --client-memory to what "
        "the container may use"
    )
