"""The limits of the machine, from trees of files like those of real systems."""

import os

import pytest

from tailrace.system import cgroup
from tailrace.system.cgroup import Machine

MIB = 1 << 20
CPUS = len(os.sched_getaffinity(0))
# Enough CPUs that no affinity of this machine hides a quota.
MANY = 80

V2 = "0::/{}\n", "24 20 0:21 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "12:pids:/{0}\n6:memory:/{0}\n3:cpu,cpuacct:/{0}\n1:name=systemd:/{0}\n0::/{0}\n",
    "30 20 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
)
NONE_V1 = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def _many_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(MANY)))


def found(root, layout, path, files):
    """What is found in a tree. files: contents by path below /sys/fs/cgroup."""
    cgroups, mountinfo = layout
    written = {"proc/self/cgroup": cgroups.format(path), "proc/self/mountinfo": mountinfo}
    for name, text in (written | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return cgroup.machine(root)


@pytest.mark.parametrize(
    ("layout", "files"),
    [
        (V2, {"pod/app/cpu.max": "200000 100000\n", "pod/app/memory.max": f"{512 * MIB}\n"}),
        (
            V1,
            {
                "cpu,cpuacct/pod/app/cpu.cfs_quota_us": "200000\n",
                "cpu,cpuacct/pod/app/cpu.cfs_period_us": "100000\n",
                "memory/pod/app/memory.limit_in_bytes": f"{512 * MIB}\n",
            },
        ),
        # Hybrid: the controllers are in version 1, and version 2 has none.
        (
            V1,
            {
                "unified/pod/app/cgroup.procs": "1\n",
                "cpu,cpuacct/pod/app/cpu.cfs_quota_us": "100000\n",
                "cpu,cpuacct/pod/app/cpu.cfs_period_us": "50000\n",
                "memory/pod/app/memory.limit_in_bytes": f"{512 * MIB}\n",
            },
        ),
        # Limits of an ancestor.
        (
            V2,
            {
                "cpu.max": "max 100000\n",
                "pod/cpu.max": "200000 100000\n",
                "pod/app/cpu.max": "400000 100000\n",
                "pod/memory.max": f"{512 * MIB}\n",
                "pod/app/memory.max": "max\n",
            },
        ),
        (
            V1,
            {
                "cpu,cpuacct/pod/cpu.cfs_quota_us": "200000\n",
                "cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/pod/app/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/pod/app/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": NONE_V1,
                "memory/pod/memory.limit_in_bytes": f"{512 * MIB}\n",
                "memory/pod/app/memory.limit_in_bytes": NONE_V1,
            },
        ),
    ],
    ids=["v2", "v1", "hybrid", "v2-ancestors", "v1-ancestors"],
)
def test_two_cpus_and_half_a_gigabyte(tmp_path, layout, files):
    machine = found(tmp_path, layout, "pod/app", files)
    assert (machine.affinity, machine.quota, machine.memory, machine.fault) == (MANY, 2.0, 512 * MIB, "")
    assert machine.cpus == 2


@pytest.mark.parametrize(
    ("cgroups", "mountinfo"),
    [
        # A cgroup namespace: the container's cgroup is the root.
        ("0::/\n", "24 20 0:21 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        # Without one, the mount shows only the container's cgroup, which has its name on the host.
        ("0::/docker/4f2a\n", "24 20 0:21 /docker/4f2a /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        # The mount is of another namespace than the process.
        ("0::/\n", "24 20 0:21 /../../docker/4f2a /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        ("0::/../../init.scope\n", "24 20 0:21 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        # A name with a space, and a mount that shows less, before the one that shows more.
        (
            "0::/a b/c\n",
            "25 20 0:21 /a\\040b/c /sys/fs/cgroup/inner ro - cgroup2 cgroup rw\n"
            "24 20 0:21 /a\\040b /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        ),
        # A neighbour whose name begins with the same letters is not an ancestor.
        ("0::/appx\n", "24 20 0:21 /app /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
    ],
    ids=["namespace", "bind", "other-namespace", "outside", "two-mounts", "neighbour"],
)
def test_what_a_container_shows_of_the_hierarchy(tmp_path, cgroups, mountinfo):
    machine = found(tmp_path, (cgroups, mountinfo), "", {"cpu.max": "150000 100000", "memory.max": f"{64 * MIB}"})
    assert (machine.quota, machine.memory) == (1.5, 64 * MIB)
    assert machine.accounts == tmp_path / "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("quota", "cpus", "shown"),
    [
        (None, 80, "80 CPUs"),
        (0.25, 1, "0.25 CPUs (cgroup quota)"),
        (1.0, 1, "1 CPU (cgroup quota)"),
        (1.5, 2, "1.5 CPUs (cgroup quota)"),
        (2.0, 2, "2 CPUs (cgroup quota)"),
        (2.01, 3, "2.01 CPUs (cgroup quota)"),
        (200.0, 80, "80 CPUs"),
    ],
)
def test_a_part_of_a_cpu_counts_as_one(quota, cpus, shown):
    machine = Machine(80, quota)
    assert (machine.cpus, machine.cpus_shown) == (cpus, shown)


def test_the_affinity_counts_where_it_is_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 7})
    assert found(tmp_path, V2, "app", {"app/cpu.max": "400000 100000"}).cpus == 2


def test_the_smaller_of_two_memory_limits_counts(tmp_path):
    machine = found(tmp_path, V2, "app", {"app/memory.max": f"{64 * MIB}", "app/memory.high": f"{48 * MIB}"})
    assert (machine.memory, machine.memory_shown) == (48 * MIB, "48 MiB (cgroup limit)")


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert cgroup.machine(tmp_path) == Machine(MANY)
    assert Machine(1).memory_shown == ""


@pytest.mark.parametrize(
    ("layout", "path", "files"),
    [
        (V2, "app", {}),
        (V2, "app", {"app/cpu.max": "max 100000\n", "app/memory.max": "max\n", "app/memory.high": "max\n"}),
        (V1, "app", {"memory/app/memory.limit_in_bytes": NONE_V1}),
        # Pages of 64 KiB.
        (V1, "app", {"memory/app/memory.limit_in_bytes": f"{(1 << 63) - (1 << 16)}"}),
        # The cgroup was removed.
        (V2, "app (deleted)", {}),
        (("", ""), "", {"cpu.max": "1 100000"}),
        (("nonsense\n0::\n:::\n", "nonsense\n1 2 3 - cgroup2\n - cgroup2 a b\n"), "", {"cpu.max": "1 100000"}),
    ],
)
def test_no_limit_is_said_in_many_ways(tmp_path, layout, path, files):
    assert found(tmp_path, layout, path, files) == Machine(MANY)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cpu.max", ""),
        ("cpu.max", "max"),
        ("cpu.max", "many 100000"),
        ("cpu.max", "0 100000"),
        ("cpu.max", "-5 100000"),
        ("cpu.max", "100000 0"),
        ("cpu.max", "9" * 400 + " 1"),
        ("cpu.max", "9" * 100_000 + " 1"),
        ("memory.max", "lots"),
        ("memory.max", "-1"),
        ("memory.max", "1.5"),
        ("memory.high", "\udcff"),
    ],
)
def test_a_file_without_sense_is_named_and_the_others_count(tmp_path, name, text):
    text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    files = {"cpu.max": "300000 100000", "memory.max": f"{64 * MIB}", f"app/{name}": text}
    machine = found(tmp_path, V2, "app", files)
    assert (machine.quota, machine.memory) == (3.0, 64 * MIB)
    assert machine.fault == f"cannot understand {tmp_path}/sys/fs/cgroup/app/{name}"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "sys/fs/cgroup/app/cpu.max").mkdir(parents=True)
    machine = found(tmp_path, V2, "app", {"app/memory.max": f"{64 * MIB}"})
    assert machine.memory == 64 * MIB
    assert machine.fault == f"cannot read {tmp_path}/sys/fs/cgroup/app/cpu.max: Is a directory"


@pytest.mark.parametrize(
    ("files", "used"),
    [
        ({"memory.current": "1000", "memory.stat": "anon 7\ninactive_file 300\nactive_file 100\n"}, 600),
        (
            {
                "memory.usage_in_bytes": "1000",
                "memory.stat": "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n",
            },
            500,
        ),
        ({"memory.current": "10", "memory.stat": "inactive_file 300\nactive_file 100\n"}, 0),
        ({"memory.current": "1000", "memory.stat": "anon 7\n"}, 1000),
        ({"memory.current": "1000"}, None),
        ({"memory.current": "lots", "memory.stat": ""}, None),
        ({}, None),
    ],
)
def test_memory_in_use_is_without_the_cache_of_files(tmp_path, files, used):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cgroup.memory_in_use(tmp_path) == used


def test_this_machine_is_read():
    assert cgroup.machine().fault == ""
