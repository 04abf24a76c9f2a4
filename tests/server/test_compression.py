"""`--compress`: which responses are compressed, that nothing is lost or delayed by it, and what proxies make of it."""

import array
import contextlib
import fcntl
import functools
import json
import subprocess
import termios
import zlib
from dataclasses import replace

import pytest
from apps.compressible import text
from frameworks.process import nginx
from harness.addresses import free_address
from harness.encrypted import TLS
from harness.server import APPS, GEVENT, Server
from harness.status import metrics
from harness.tools import need_tool
from harness.wire import Broken, Client
from server.probes import at_once, eventually, request

MODES = [
    pytest.param([], id="threads"),
    pytest.param(["--debug"], id="debug", marks=pytest.mark.skipif(GEVENT, reason="threads")),
]
GZIP = "Accept-Encoding: gzip"
FINDS_IT = {"PYTHONPATH": str(APPS)}
SHAPES = ["list", "parts", "blocks", "large-blocks", "write", "file"]
NGINX = """
server {
    listen %(listen)s;
    gzip on;
    gzip_types text/plain;
    gzip_vary on;
    location / {
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_pass http://%(server)s;
    }
    location /old/ {
        proxy_pass http://%(server)s/;
    }
}
"""


def server(*arguments, **options):
    return Server("compressible:app", "--compress", *arguments, environment=FINDS_IT, **options)


@pytest.fixture(scope="module")
def serving():
    with server() as serving:
        yield serving


@pytest.fixture
def client(serving):
    with serving.client() as client:
        yield client


def ask(client, target, *fields, method="GET", version="1.1"):
    return client.ask(request(target, *fields, version=version).replace(b"GET", method.encode(), 1), method, version)


def gunzipped(data):
    """All of it, with its checksum."""
    decoder = zlib.decompressobj(31)
    plain = decoder.decompress(data)
    assert (decoder.eof, decoder.unused_data) == (True, b"")
    return plain


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("arguments", MODES)
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_every_shape_arrives_whole_in_every_coding(tmp_path, arguments, coding):
    # The last is produced faster than it is compressed.
    table = [(shape, size) for shape in SHAPES for size in (1_024, 20_000, 1_500_000)] + [("large-blocks", 10_000_000)]
    command = [need_tool("curl"), "--silent", "--show-error", "--fail", "--insecure", "--dump-header", "head"]
    command += ["--compressed", "--header", f"Accept-Encoding: {coding}", "--output", "plain"]
    with server(*arguments, directory=tmp_path) as serving:
        for shape, size in table:
            subprocess.run([*command, f"{serving.url}/{shape}?size={size}"], cwd=tmp_path, check=True, timeout=60)
            assert f"Content-Encoding: {coding}" in (tmp_path / "head").read_text(), shape
            wanted = text(size) + (b" end" if shape == "write" else b"")
            assert (tmp_path / "plain").read_bytes() == wanted, (shape, size)


@pytest.mark.parametrize("arguments", MODES)
def test_a_connection_goes_on_after_compressed_responses(arguments):
    with server(*arguments) as serving, serving.client() as client:
        for shape in ("list", "blocks"):
            for size in (5_000, 100, 300_000, 1_024):
                answer = ask(client, f"/{shape}?size={size}", GZIP)
                # How long the blocks of a generator are in all is not known.
                is_compressed = size >= 1_024 or shape == "blocks"
                assert ("Content-Encoding" in answer) == is_compressed
                assert (gunzipped(answer.body) if is_compressed else answer.body) == text(size)
        # All at once.
        client.send(b"".join(request(f"/list?size={2_000 + number}", GZIP) for number in range(20)))
        for number in range(20):
            assert gunzipped(client.response().body) == text(2_000 + number)


def test_head_and_conditional_requests_get_the_fields_of_the_compressed_response(client):
    target = "/list?%2BETag=%22v1%22&%2BAccept-Ranges=bytes&%2BVary=Cookie"
    shown = []
    for method in ("GET", "HEAD"):
        answer = ask(client, target, GZIP, method=method)
        shown.append([field for field in answer.fields if field[0] not in ("Date", "Transfer-Encoding")])
        assert answer["ETag"] == 'W/"v1"'
        assert answer.all("Vary") == ["Cookie", "Accept-Encoding"]
        assert "Accept-Ranges" not in answer and "Content-Length" not in answer
    assert shown[0] == shown[1]
    answer = ask(client, f"{target}&status=304%20Not%20Modified", GZIP)
    assert (answer.status, answer["ETag"], answer.body) == (304, 'W/"v1"', b"")
    assert answer.all("Vary") == ["Cookie", "Accept-Encoding"]
    # Another client.
    answer = ask(client, target)
    assert (answer["ETag"], answer["Content-Length"]) == ('"v1"', "20000")
    assert answer.all("Vary") == ["Cookie", "Accept-Encoding"]
    assert answer.body == text(20_000)


@pytest.mark.parametrize(
    "query",
    [
        "size=1023",
        "type=image/png",
        "type=text/event-stream",
        "%2BContent-Encoding=identity",
        "%2BCache-Control=no-transform",
        "%2BContent-Range=bytes%200-19999/20000&status=206%20Partial%20Content",
        "%2BContent-Digest=sha-256=:X:",
    ],
)
def test_what_is_exempt_is_sent_as_it_is(client, query):
    answer = ask(client, f"/list?{query}", GZIP)
    size = 1023 if "1023" in query else 20_000
    assert answer.body == text(size)
    assert answer["Content-Length"] == str(size)
    assert "Vary" not in answer


def test_types_are_a_setting_and_small_responses_are_not_compressed():
    types = ("--compress-types", "application/*", "--compress-types", "text/event-stream")
    with server(*types) as serving, serving.client() as client:
        for kind, size, is_compressed in [
            ("application/x-any", 1024, True),
            ("text/event-stream;charset=utf-8", 1024, True),
            ("application/json", 1023, False),
            ("text/plain", 20_000, False),
        ]:
            answer = ask(client, f"/list?type={kind}&size={size}", GZIP)
            assert ("Content-Encoding" in answer) == is_compressed, kind


def test_without_the_option_nothing_is_compressed():
    with Server("compressible:app") as serving, serving.client() as client:
        answer = ask(client, "/list", GZIP)
        assert answer.body == text(20_000)
        assert "Vary" not in answer


@pytest.mark.parametrize("arguments", MODES)
def test_a_block_is_not_delayed_until_the_next(tmp_path, arguments):
    with server(*arguments, directory=tmp_path) as serving, serving.client() as client:
        client.send(request("/gated?gate=go", GZIP))
        head = client.head()
        assert head["Content-Encoding"] == "gzip"
        decoder = zlib.decompressobj(31)
        for number in range(3):
            block, wanted = b"", b"block %d " % number * 20
            while len(block) < len(wanted):
                block += decoder.decompress(client.chunk(head))
            assert block == wanted
            (tmp_path / f"go{number}").touch()
        while data := client.chunk(head):
            decoder.decompress(data)
        assert decoder.eof


@pytest.mark.parametrize(
    "target", ["/list?size=5000&%2BContent-Length=6000", "/fails?size=5000", "/fails?size=5000&%2BContent-Length=6000"]
)
def test_a_body_that_is_too_short_is_seen_to_be(client, target):
    client.send(request(target, GZIP))
    with pytest.raises(Broken) as broken:
        client.response()
    decoder = zlib.decompressobj(31)
    # All that the application gave has come, without an end.
    assert decoder.decompress(broken.value.response.body) == text(5_000)
    assert not decoder.eof


def test_what_is_beyond_the_content_length_is_dropped_and_logged(serving, client):
    answer = ask(client, "/blocks?size=5000&%2BContent-Length=3000", GZIP)
    assert gunzipped(answer.body) == text(3_000)
    assert serving.logged("Content-Length")


def test_a_slow_client_holds_no_thread():
    with (
        server("--threads", "1", "--client-memory", "64MiB") as serving,
        serving.client() as slow,
        serving.client() as other,
    ):
        slow.send(request("/list?size=20000000", GZIP))
        head = slow.head()
        assert ask(other, "/list?size=2000", GZIP).status == 200
        assert gunzipped(slow.body_of(head).body) == text(20_000_000)


def test_encoders_keep_within_the_memory_for_responses(tmp_path):
    """Past it, streams are sent as they are."""
    with server("--client-memory", "2MiB", "--threads", "16", directory=tmp_path) as serving:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(serving.client()) for _ in range(6)]
            heads = []
            for client in clients:
                client.send(request("/gated?gate=go", GZIP))
                heads.append(client.head())
            assert ["Content-Encoding" in head for head in heads] == [True] * 2 + [False] * 4
            assert all(head["Vary"] == "Accept-Encoding" for head in heads)
            for number in range(3):
                (tmp_path / f"go{number}").touch()
            for client, head in zip(clients, heads, strict=True):
                client.body_of(head)
        # Their memory is free again.
        with serving.client() as client:
            assert "Content-Encoding" in ask(client, "/list", GZIP)


def test_many_clients_at_once_get_their_own_responses_whole():
    """Some of them leave in the middle."""

    def run(serving, seed):
        for number in range(60):
            shape = ("list", "blocks", "large-blocks", "write")[(seed + number) % 4]
            size = (1_500, 30_000, 400_000)[number % 3] + seed
            with serving.client(60) as client:
                if number % 5 == 4:
                    client.send(request(f"/{shape}?size={size}", GZIP))
                    client.head()
                    continue
                answer = ask(client, f"/{shape}?size={size}", GZIP)
                assert gunzipped(answer.body) == text(size) + (b" end" if shape == "write" else b"")

    with server("--workers", "2") as serving:
        at_once(*(functools.partial(run, serving, seed) for seed in range(8)))
        assert serving.stop() == 0


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("arguments", [[], ["--gevent"]], ids=["threads", "greenlets"])
def test_clients_that_reset_in_mid_compression_leave_no_memory(arguments, is_encrypted):
    address, status = replace(free_address(), is_encrypted=is_encrypted or TLS), free_address()

    def run(serving, coding):
        for _ in range(20):
            with serving.client(60) as client:
                client.send(request("/large-blocks?size=20000000", f"Accept-Encoding: {coding}"))
                # By then, the socket is full from time to time, and much remains to be compressed.
                eventually(lambda client=client: unread(client) > 100_000, "the beginning of the response")
                client.abort()

    with server(*arguments, address=address, status=status) as serving:
        at_once(*(functools.partial(run, serving, coding) for coding in ("gzip", "br", "zstd")))
        eventually(lambda: metrics(status)["tailrace_response_memory_bytes"] == 0, "the memory given back")
        with serving.client() as client:
            assert gunzipped(ask(client, "/list", GZIP).body) == text(20_000)


def unread(client):
    """Bytes that the client's kernel has received and the client has not read."""
    count = array.array("i", [0])
    fcntl.ioctl(client.sock, termios.FIONREAD, count)
    return count[0]


def test_nginx_compresses_nothing_twice(serving):
    listen = free_address()
    site = NGINX % {"listen": listen.bind, "server": serving.address.bind}
    with nginx(listen, site), Client(listen) as client:
        for prefix in ("", "/old"):
            answer = ask(client, f"{prefix}/blocks?size=50000", GZIP)
            assert answer.all("Content-Encoding") == ["gzip"]
            assert gunzipped(answer.body) == text(50_000)
            # nginx does not know that type for text.
            answer = ask(client, f"{prefix}/list?size=50000&type=application/json", GZIP)
            assert gunzipped(answer.body) == text(50_000)


def test_the_gain_is_counted_and_in_the_record(tmp_path):
    (tmp_path / "recorded.py").write_text(RECORDED)
    status, told = free_address(), tmp_path / "told"
    with (
        Server("recorded:app", "--compress", status=status, directory=tmp_path, environment=FINDS_IT) as serving,
        serving.client() as client,
    ):
        answer = ask(client, "/?size=20000", GZIP)
        assert gunzipped(answer.body) == text(20_000)
        eventually(told.exists, "the record")
        record, length = json.loads(told.read_text()), len(answer.body)
        wanted = {"delivery": "compressed", "coding": "gzip", "plain_bytes": 20_000, "bytes": length}
        assert wanted.items() <= record.items()
        assert record["compress_ms"] > 0
        names = ("responses_compressed", "compression_input_bytes", "compression_output_bytes")

        def counted():
            found = metrics(status)
            return [found[f"tailrace_{name}_total"] for name in names] == [1, 20_000, length]

        eventually(counted, "the counts")


RECORDED = """
import json
import os

import tailrace
from compressible import text

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [text(20_000)]

@tailrace.on_delivery
def told(record):
    with open("new", "w") as file:
        json.dump(record, file)
    os.rename("new", "told")
"""
