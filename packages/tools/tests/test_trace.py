"""`tailrace trace`: each script, by the real bpftrace, shows what the server has really done."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import packets
from harness.addresses import free_address
from harness.server import Server, shared
from harness.tools import missing, need_tool
from server.probes import eventually, request
from tailrace_tools.live import trace

import tailrace

EXTENSION = tailrace._tailrace.__file__
EVERY = {
    "connection_open",
    "connection_close",
    "request_start",
    "application_enter",
    "application_leave",
    "block",
    "flush",
    "response_end",
}
# bpftrace compiles its scripts.
DEADLINE = 60.0


@pytest.fixture(scope="module")
def bpftrace():
    """Skips where the scripts cannot run."""
    need_tool("bpftrace")
    if reason := trace.missing():
        pytest.skip(reason)
    tried = subprocess.run(
        ["bpftrace", "-e", f"uprobe:{EXTENSION}:PyInit__tailrace {{}} BEGIN {{ exit(); }}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if tried.returncode:
        missing(f"bpftrace may not attach here: {tried.stderr.strip()}")


traced = shared(Server, "srv_traced:app", threads=4)


class Trace:
    """bpftrace, which runs until `end`, and what it has printed. `sent`: requests that were sent to its server."""

    def __init__(self, server, command):
        self.server = server
        self.sent = 0
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by tracing()
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)

    @property
    def text(self):
        return os.pread(self.output.fileno(), 1 << 20, 0).decode()

    def ask(self, *targets):
        """The bodies, all by one connection."""
        with self.server.client() as client:
            bodies = []
            for target in targets:
                client.send(request(target))
                self.sent += 1
                bodies.append(client.response().body)
            return bodies

    def sees(self, seen):
        """True when requests of now are seen: `seen` is among what it prints."""
        self.ask("/", "/", "/")
        assert self.process.poll() is None, self.text
        before = self.text
        if "Attaching" in before and seen not in before and seen.startswith("@"):
            # Has it print its maps, also those that are empty. A further signal would interrupt that.
            self.process.send_signal(signal.SIGUSR1)
            eventually(lambda: self.text != before or self.process.poll() is not None, "it prints", DEADLINE)
        return seen in self.text

    def end(self):
        """All that it has printed, its maps last."""
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            # bpftrace 0.17 misses a signal that comes while it does not wait for events.
            self.process.send_signal(signal.SIGINT)
            status = self.process.wait(DEADLINE)
        assert status == 0, self.text
        return self.text


@contextlib.contextmanager
def tracing(server, command, seen):
    """A trace that has begun to see requests."""
    trace = Trace(server, command)
    try:
        eventually(lambda: trace.sees(seen), f"{command} sees requests", DEADLINE)
        yield trace
    finally:
        trace.process.kill()
        trace.process.wait()
        trace.output.close()


def script(server, *arguments):
    return [sys.executable, "-m", "tailrace", "trace", *arguments, "--pid", str(server.process.pid)]


def lines(text):
    """The columns of the lines that begin with a time."""
    found = [line.split() for line in re.findall(r"^\d\d:\d\d:\d\d .*", text, re.MULTILINE)]
    assert found, text
    return found


def histogram(text, name):
    """{lower bound: count} of the last histogram of that name, without empty rows."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = {}
    for row in text.rpartition(f"@{name}:")[2].strip().splitlines():
        shown = re.match(r"[\[(](\d+)([KMG]?)[,\]].*?(\d+) \|", row)
        if not shown:
            break
        if count := int(shown[3]):
            found[int(shown[1]) * units[shown[2]]] = count
    return found


AT = f"usdt:{EXTENSION}:tailrace:"
EVENTS = f"""
    {AT}connection_open, {AT}connection_close, {AT}application_enter, {AT}application_leave
    {{ printf("%llu %llu %s\\n", nsecs, arg0, probe); }}
    {AT}block, {AT}flush {{ printf("%llu %llu %s %d\\n", nsecs, arg0, probe, arg1); }}
    {AT}request_start {{ printf("%llu %llu %s %s %s\\n", nsecs, arg0, probe, str(arg1, arg2), str(arg3, arg4)); }}
    {AT}response_end {{
        $queued = arg4 / 1000000000;
        $ran = arg5 / 1000000000;
        printf("%llu %llu %s %d %d %d %d %d\\n", nsecs, arg0, probe, arg1, arg2, arg3, $queued, $ran);
    }}
"""


def life_of(target, text):
    """[event, arguments] of the connection that asked for the target; None: it is not closed."""
    whole = [line.replace(AT, "").split(maxsplit=3) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    # The processors have a buffer each.
    events = sorted(
        (event for event in whole if len(event) > 2 and event[0].isdigit()), key=lambda event: int(event[0])
    )
    found = []
    for _, key, name, *rest in events:
        if name == "connection_open":
            found = [event for event in found if event[0] != key]
        found.append([key, name, "".join(rest).strip()])
        if name == "connection_close" and [key, "request_start", f"GET {target}"] in found:
            return [event[1:] for event in found if event[0] == key]
    return None


@pytest.mark.parametrize("way", ["http", "uwsgi", "gevent"])
def test_each_event_is_seen_once_with_the_key_of_its_connection(bpftrace, way):
    http, uwsgi = free_address(), free_address()
    arguments = ["--bind", http.bind, "--bind", f"uwsgi://{uwsgi.bind}", "--trusted-proxies", "127.0.0.1"]
    with (
        Server("srv_traced:app", *arguments, *["--gevent"] * (way == "gevent"), address=http) as server,
        tracing(server, ["bpftrace", "-B", "line", "-e", EVENTS], "connection_close") as trace,
    ):
        if way == "uwsgi":
            body = packets.ask(uwsgi, packets.packet(packets.variables("/late?why"))).body
        else:
            with server.client() as client:
                body = client.ask(request("/late?why", "Connection: close")).body
                client.at_end()
        seen = eventually(lambda: life_of("/late?why", trace.text), "the connection is closed", DEADLINE)
    assert [name for name, _ in seen if name != "flush"] == [
        "connection_open",
        "request_start",
        "application_enter",
        *["block"] * 3,
        "application_leave",
        "response_end",
        "connection_close",
    ]
    assert [int(size) for name, size in seen if name == "block"] == [4, 4, len(body) - 8]
    assert sum(int(size) for name, size in seen if name == "flush") > len(body)
    # The status, bytes, the ending "complete", no second queued and one in the application.
    assert ["response_end", f"200 {len(body)} 1 0 1"] in seen


def test_latency_has_each_request_in_the_bucket_of_its_time(bpftrace, traced):
    with tracing(traced, script(traced, "latency"), "@total:") as trace:
        # A response may still be accounted for when its client has it, but not when the next one has come.
        trace.ask(*["/"] * 19, "/sleeps", "/")
        text = trace.end()
    for phase in ("application", "total"):
        found = histogram(text, phase)
        assert (found.pop(1 << 20), 20 <= sum(found.values()) + 1 <= trace.sent) == (1, True), text
        assert max(found) < 1 << 20
    for phase in ("queued", "sending"):
        # The last request may be seen in part.
        assert abs(sum(histogram(text, phase).values()) - sum(histogram(text, "application").values())) <= 1, text
        assert max(histogram(text, phase)) < 1 << 20
    assert "@start" not in text.rpartition("@total")[2]


def usual(counts):
    return Counter(counts).most_common(1)[0][0]


def test_calls_are_as_many_as_strace_counts(bpftrace, traced, tmp_path):
    with tracing(traced, script(traced, "calls"), "@per_response:") as trace:
        trace.ask(*["/"] * 60)
        text = trace.end()
    path = tmp_path / "calls"
    command = [need_tool("strace"), "-f", "-p", str(traced.pid), "-o", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
        assert b"attached" in tracer.stderr.readline()
        with traced.client() as client:
            for _ in range(60):
                client.ask(request("/"))
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)
    made, per_response = Counter(), []
    for line in path.read_text().splitlines():
        thread, call = line.split(maxsplit=1)
        if "resumed>" in call or "(" not in call:
            continue
        made[thread] += 1
        if call.startswith("sendto("):
            per_response.append(made.pop(thread))
    found = histogram(text, "per_response")
    assert sum(found.values()) >= 60
    assert max(found, key=found.__getitem__) == usual(per_response) == 3, text
    # The end of the last response may not have been seen.
    assert int(re.findall(r"@calls\[.*sys_enter_sendto\]: (\d+)", text)[-1]) - sum(found.values()) in (0, 1)


def test_blocks_names_the_request_of_a_late_one(bpftrace, traced):
    with tracing(traced, script(traced, "blocks", "--over", "1s"), "@gaps:") as trace:
        (body,) = trace.ask("/late?which")
        # What is not printed before the signal may never be.
        eventually(lambda: "/late?which" in trace.text, "it is named", DEADLINE)
        text = trace.end()
    ((_, pid, block, after, size, *name),) = lines(text)
    assert (int(pid), int(block), int(size), name) == (traced.pid, 3, len(body) - 8, ["/late?which"])
    assert int(after) >= 1200


@pytest.mark.parametrize("functions", [trace.EXACT, trace.EXPORTED])
def test_gil_names_the_thread_that_holds_it_and_its_request(bpftrace, traced, functions):
    command = script(traced, "gil", "--over", "1s")
    chosen = trace.command("gil", traced.process.pid, 1.0)
    if tuple(chosen[-2:]) != functions:
        if functions is trace.EXACT:
            pytest.skip("this Python has no symbols of its own functions")
        command = [*chosen[:-2], *functions]
    # With the exported ones the end may be unseen: then the line says "so far".
    end = r" \d{4} {9}/keeps" if functions is trace.EXACT else "/keeps"
    with tracing(traced, command, "@held[") as found, ThreadPoolExecutor() as pool:
        holds = pool.submit(found.ask, "/keeps?what")
        # Another thread waits.
        found.ask("/")
        (thread,) = holds.result()
        eventually(lambda: re.search(end, found.text), "it is named", DEADLINE)
        text = found.end()
    assert {(pid, number, rest[-1]) for _, pid, number, *rest in lines(text)} == {
        (str(traced.pid), thread.decode(), "/keeps?what")
    }
    if functions is trace.EXACT:
        assert re.search(rf"@held\[.*, {thread.decode()}\]: count", text), text


def notes(path):
    """{probe: semaphores} of an ELF file."""
    text = subprocess.run([need_tool("readelf"), "-n", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for name, semaphore in re.findall(r"Provider: tailrace\s+Name: (\w+)\s+.*Semaphore: (\w+)", text):
        found.setdefault(name, set()).add(int(semaphore, 16))
    return found


def test_the_extension_has_each_probe_also_when_it_is_stripped(tmp_path):
    found = notes(EXTENSION)
    assert set(found) == EVERY
    # bpftrace takes one counter for all places of a probe.
    assert all(len(semaphores) == 1 for semaphores in found.values()), found
    stripped = tmp_path / "stripped.so"
    subprocess.run([need_tool("strip"), "-s", "-o", stripped, EXTENSION], check=True)
    assert notes(stripped) == found
