"""Limits of real cgroups, and variables of platforms: what the server makes of them.

The cgroups are made at the root of a hierarchy, by root."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from harness.addresses import Address, free_address
from harness.operated import Operated
from harness.server import APPS, Server, children
from server.probes import eventually, told

TREE = Path("/sys/fs/cgroup")
# Moves the shell into a cgroup, and replaces it by a command.
IN_CGROUP = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


@contextlib.contextmanager
def cgroup(controller, **limits):
    """The directory of a new cgroup with limits: the names of files, with _ for the first dot."""
    unified = (TREE / "cgroup.controllers").exists()
    above = TREE if unified else TREE / controller
    rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path for number, names, path in rows if controller in names.split(",") or (unified and number == "0")]
    if paths != ["/"]:
        # Elsewhere, the tests would leave the limits that hold for them.
        pytest.skip(f"these tests run in the cgroup {paths} of {controller}, not at the root of its hierarchy")
    made = above / f"tailrace-test-{uuid.uuid4().hex[:8]}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"cannot create a cgroup: {error}")
    try:
        for name, value in limits.items():
            file = made / name.replace("_", ".", 1)
            if not file.exists():
                pytest.skip(f"{file} does not exist: the controller is not enabled, or of the other version")
            file.write_text(value)
        yield made
    finally:
        # The processes in it have ended, or end.
        eventually(lambda: not (made / "cgroup.procs").read_text().strip(), "the cgroup is empty")
        made.rmdir()


def quota(cpus):
    """A cgroup with this quota, of either version."""
    if (TREE / "cgroup.controllers").exists():
        return cgroup("cpu", cpu_max=f"{int(cpus * 100_000)} 100000")
    return cgroup("cpu", cpu_cfs_period_us="100000", cpu_cfs_quota_us=f"{int(cpus * 100_000)}")


def shown(directory, *arguments):
    """What `tailrace config` prints about an option in a cgroup."""
    command = [sys.executable, "-m", "tailrace", "config", "--format", "json", *arguments]
    output = subprocess.run(["sh", "-c", IN_CGROUP, directory, *command], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output)


several_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single CPU cannot be divided")


@several_cpus
@pytest.mark.parametrize(("cpus", "follows"), [(0.5, "1 for 0.5 CPUs"), (1.0, "1 for 1 CPU"), (1.5, "2 for 1.5 CPUs")])
def test_a_quota_decides_how_many_workers_there_are(cpus, follows):
    with quota(cpus) as directory:
        below = directory / "below"
        below.mkdir()
        try:
            for place in (directory, below):
                assert shown(place, "--workers", "auto")["workers"]["machine"] == f"{follows} (cgroup quota)"
            eventually(lambda: not (below / "cgroup.procs").read_text().strip(), "the inner cgroup is empty")
        finally:
            below.rmdir()


@several_cpus
def test_a_cpuset_decides_how_many_workers_there_are():
    first = min(os.sched_getaffinity(0))
    with cgroup("cpuset", cpuset_mems="0", cpuset_cpus=str(first)) as directory:
        assert shown(directory, "--workers", "auto")["workers"]["machine"] == "1 for 1 CPU"


@several_cpus
def test_a_reload_follows_a_changed_quota():
    cpus = len(os.sched_getaffinity(0))
    with quota(1.0) as directory, Server("srv_processes:app", workers="auto") as server:
        eventually(lambda: server.log.count(" ready in ") == cpus, "the first workers")
        (directory / "cgroup.procs").write_text(str(server.process.pid))
        server.send_signal(signal.SIGHUP)
        assert server.logged("1 CPU (cgroup quota): 1 worker, 512 MiB of client memory\n")
        eventually(lambda: len(children(server.process.pid)) == 1, "one worker is left")
        assert told(server, "/")["multiprocess"] is False
        assert server.stop() == 0


def test_a_memory_limit_decides_how_much_is_for_clients():
    unified = (TREE / "cgroup.controllers").exists()
    limit = {"memory_max" if unified else "memory_limit_in_bytes": str(256 << 20)}
    with cgroup("memory", **limit) as directory:
        follows = "32 MiB for 256 MiB (cgroup limit) and 2 workers"
        assert shown(directory, "--workers", "2")["client_memory"]["machine"] == follows


def test_a_platform_says_where_to_listen_and_with_how_many_workers(tmp_path):
    address = Address("127.0.0.1", free_address("0.0.0.0").port)
    platform = {"PORT": str(address.port), "WEB_CONCURRENCY": "2", "PYTHONPATH": str(APPS)}
    with Operated(tmp_path, "srv_processes:app", address=address, environment=platform, binds=False) as server:
        eventually(lambda: server.log.count(" ready in ") == 2, "two workers")
        assert json.loads(server.get("/").body)["multiprocess"] is True
        said = f"PORT sets --bind to 0.0.0.0:{address.port}; WEB_CONCURRENCY sets --workers to 2\n"
        assert server.log.count(said) == 1
