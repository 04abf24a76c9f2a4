"""Reports to systemd, and the sockets that it passes. A datagram socket stands for the manager."""

import logging
import os
import socket
import struct
import subprocess
import sys
import time

import pytest

from tailrace.errors import ConfigError
from tailrace.master import notify


class StandIn:
    """The manager's end: what came, and from which process the kernel says it came."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.settimeout(10)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.variable = address

    def told(self):
        data, ancillary, _, _ = self.socket.recvmsg(4096, 1024)
        ((_, _, credentials),) = ancillary
        assert struct.unpack("iII", credentials)[0] == os.getpid()
        return data.decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def standin(request, tmp_path):
    path = str(tmp_path / "notify") if request.param == "path" else f"@tailrace-test-{os.getpid()}"
    standin = StandIn(path)
    with standin.socket:
        yield standin


def test_each_report_is_one_datagram_of_variables(standin):
    manager = notify.manager({"NOTIFY_SOCKET": standin.variable}, os.getpid())
    manager.ready("2 workers serve")
    assert standin.told() == ["READY=1", "STATUS=2 workers serve"]
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.reloading("reload 1")
    reloading, moment, status = standin.told()
    assert (reloading, status) == ("RELOADING=1", "STATUS=reload 1")
    name, _, value = moment.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.watchdog()
    assert standin.told() == ["WATCHDOG=1"]
    manager.main_process(4711, "2 workers serve")
    assert standin.told() == ["MAINPID=4711", "READY=1", "STATUS=2 workers serve"]
    manager.stopping("2 workers finish")
    assert standin.told() == ["STOPPING=1", "STATUS=2 workers finish"]
    manager.close()


def test_a_status_is_one_line_whatever_is_in_it(standin):
    manager = notify.manager({"NOTIFY_SOCKET": standin.variable}, os.getpid())
    manager.stopping("failed:\nMAINPID=1")
    assert standin.told() == ["STOPPING=1", "STATUS=failed: MAINPID=1"]
    manager.close()


def test_without_a_manager_reports_do_nothing(caplog):
    manager = notify.manager({}, os.getpid())
    manager.ready("serves")
    manager.watchdog()
    manager.close()
    assert not caplog.records


def test_a_manager_that_is_gone_is_warned_of_once_and_may_come_back(tmp_path, caplog):
    path = str(tmp_path / "notify")
    manager = notify.manager({"NOTIFY_SOCKET": path}, os.getpid())
    manager.ready("serves")
    manager.watchdog()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "NOTIFY_SOCKET: cannot report READY=1 to the service manager: No such file" in caplog.text
    standin = StandIn(path)
    with standin.socket:
        manager.watchdog()
        assert standin.told() == ["WATCHDOG=1"]
    manager.close()


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative"])
def test_an_address_of_another_kind_is_warned_of(address, caplog):
    notify.manager({"NOTIFY_SOCKET": address}, 1).ready("serves")
    assert "neither a path nor an abstract name" in caplog.text


@pytest.mark.parametrize(
    ("variables", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "12"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "13"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_told_at_half_of_its_time(variables, interval):
    assert notify.manager({"NOTIFY_SOCKET": "/run/notify", **variables}, 12).watchdog_interval == interval
    assert notify.manager(dict(variables), 12).watchdog_interval is None


def test_the_variables_are_taken_out_of_the_environment():
    environ = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "12", "PATH": "/bin"}
    notify.manager(environ, 12)
    environ |= {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "web", "LISTEN_PIDFDID": "7"}
    notify.passed_sockets(environ, 12)
    assert environ == {"PATH": "/bin"}


# What systemd does between fork and exec: sockets from 3 on, and who they are for.
ACTIVATE = """
import fcntl, os, sys
names, descriptors = sys.argv[1], [int(text) for text in sys.argv[2].split(",")]
high = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in descriptors]
for index, each in enumerate(high):
    os.dup2(each, 3 + index)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)), LISTEN_FDNAMES=names)
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""

TAKE = """
import os
from tailrace.master import notify
from tailrace.system import addresses, sockets
passed = notify.passed_sockets(os.environ, os.getpid())
for each in passed:
    listener = sockets.bind(addresses.InheritedAddress(each))
    print(each, listener.url, os.get_inheritable(each))
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


def test_passed_sockets_are_taken():
    with socket.create_server(("127.0.0.1", 0)) as web, socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        descriptors = [web.fileno(), six.fileno()]
        command = [sys.executable, "-c", ACTIVATE, "web:six", ",".join(map(str, descriptors)), "-c", TAKE]
        done = subprocess.run(command, pass_fds=descriptors, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.splitlines() == [
            f"3 http://127.0.0.1:{web.getsockname()[1]} False",
            f"4 http://[::1]:{six.getsockname()[1]} False",
            "[]",
        ]


def test_sockets_for_another_process_are_left_alone(caplog):
    assert notify.passed_sockets({}, 12) == []
    assert notify.passed_sockets({"LISTEN_PID": "12", "LISTEN_FDS": "0"}, 12) == []
    assert notify.passed_sockets({"LISTEN_PID": "11", "LISTEN_FDS": "1"}, 12) == []
    assert "the sockets are not used, since they were passed to process 11, and this is process 12" in caplog.text


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LISTEN_PID": "12", "LISTEN_FDS": "x"}, "must be two numbers"),
        ({"LISTEN_FDS": "1"}, "LISTEN_PID = '', LISTEN_FDS = '1': must be two numbers"),
        ({"LISTEN_PID": "12", "LISTEN_FDS": "100000"}, "is not open; unset LISTEN_FDS and LISTEN_PID"),
    ],
)
def test_variables_that_make_no_sense_are_one_line(variables, message):
    with pytest.raises(ConfigError, match=message):
        notify.passed_sockets(variables, 12)
