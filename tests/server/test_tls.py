"""TLS: which certificate a client gets and what it has to show, with curl, OpenSSL and Python's ssl as clients."""

import contextlib
import datetime
import functools
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import time
import urllib.request
import warnings
from dataclasses import replace

import pytest
import trustme
from harness import encrypted
from harness.addresses import free_address
from harness.encrypted import authority_in
from harness.operated import Checking, Operated, operating
from harness.programs import tailrace
from harness.server import Server
from harness.status import answer
from harness.status import ask as status_ask
from harness.tools import need_tool
from harness.wire import Broken, Client
from server.probes import eventually

APP = """
import json
import os
import threading

GATE = threading.Event()

def app(environ, start_response):
    path = environ["PATH_INFO"]
    fields = [("Content-Type", "application/json")]
    if path == "/short":
        start_response("200 OK", [*fields, ("Content-Length", "100")])
        return [b"x" * 40]
    if path == "/until-close":
        start_response("200 OK", [*fields])
        return iter([b"y" * 50_000, b"z" * 50_000])
    if path == "/breaks":
        def body():
            yield b"y" * 50_000
            raise ValueError("meant to fail")
        start_response("200 OK", fields)
        return body()
    if path == "/echo":
        body = environ["wsgi.input"].read()
    elif path == "/large":
        body = b"0123456789" * 400_000
    elif path[1:].isdigit():
        body = b"%d." % int(path[1:]) * (1 + int(path[1:]) % 7 * 997)
    else:
        shown = ("SSL_", "HTTPS", "SERVER_", "REMOTE_", "wsgi.url_scheme")
        body = json.dumps({k: v for k, v in environ.items() if k.startswith(shown)} | {"pid": os.getpid()}).encode()
    start_response("200 OK", [*fields, ("Content-Length", str(len(body)))])
    return [body]
"""
LARGE = b"0123456789" * 400_000


def some_authority(directory):
    (directory / "tls").mkdir()
    return authority_in(directory / "tls")


@pytest.fixture
def authority(tmp_path):
    return some_authority(tmp_path)


def served(directory, authority, *arguments, address=None, certificates=True, **options):
    (directory / "app.py").write_text(APP)
    address = address or free_address()
    files = ("--certfile", str(authority.chain), "--keyfile", str(authority.key)) if certificates else ()
    bind = () if "--bind" in arguments else ("--bind", f"https://{address.place}")
    return Server("app:app", *arguments, *bind, *files, address=address, directory=directory, **options)


@pytest.fixture
def serve(tmp_path, authority):
    return functools.partial(served, tmp_path, authority)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server with default settings, and the authority of its certificate."""
    directory = tmp_path_factory.mktemp("shared")
    authority = some_authority(directory)
    with served(directory, authority) as server:
        yield server, authority


MODES = [
    (),
    ("--stream-body",),
    ("--gevent",),
    ("--gevent", "--stream-body"),
    ("--debug",),
    ("--debug", "--stream-body"),
]


@pytest.fixture(scope="module", params=MODES, ids=" ".join)
def in_each_mode(request, tmp_path_factory):
    """A server in each mode; idle connections are kept for long."""
    directory = tmp_path_factory.mktemp("mode")
    authority = some_authority(directory)
    with served(directory, authority, *request.param, "--keepalive-timeout", "600") as server:
        yield server, authority


def serves_on(server, authority):
    assert environ(server, authority.client())["HTTPS"] == "on"


def connect(server, context, *, host="localhost", session=None):
    """A connection whose handshake is complete."""
    return connect_to(server.address, context, host, session)


def connect_to(address, context, host, session=None):
    plain = address.connect_plain()
    try:
        return context.wrap_socket(plain, server_hostname=host, session=session, suppress_ragged_eofs=False)
    except BaseException:
        plain.close()
        raise


def ask(sock, target="/", *fields):
    client = Client.on(sock)
    return client.ask("\r\n".join([f"GET {target} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode())


def environ(server, context, **options):
    with connect(server, context, **options) as sock:
        return json.loads(ask(sock).body)


def openssl(server, *arguments, sent=b""):
    need_tool("openssl")
    return subprocess.run(
        ["openssl", "s_client", "-connect", server.address.place, *arguments],
        input=sent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=30,
        check=False,
    ).stdout.decode(errors="replace")


@pytest.mark.parametrize(
    ("tls", "cipher"), [("1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"), ("1.3", "TLS_AES_256_GCM_SHA384")]
)
def test_the_application_sees_what_the_handshake_has_shown(shared, tls, cipher):
    server, authority = shared
    found = environ(server, authority.client(tls=tls))
    expected = {"HTTPS": "on", "wsgi.url_scheme": "https", "SSL_PROTOCOL": f"TLSv{tls}", "SSL_TLS_SNI": "localhost"}
    expected |= {"SSL_CIPHER": cipher, "SSL_CLIENT_VERIFY": "NONE", "SERVER_PORT": str(server.address.port)}
    assert expected.items() <= found.items()
    # Without a name.
    context = authority.client()
    context.check_hostname = False
    assert "SSL_TLS_SNI" not in environ(server, context, host=None)


def test_curl_trusts_it_and_gets_whole_bodies_both_ways(shared, tmp_path):
    need_tool("curl")
    server, authority = shared
    (tmp_path / "sent").write_bytes(os.urandom(3_000_000))
    url = f"https://localhost:{server.address.port}"
    curl = ["curl", "-sS", "--fail", "--cacert", str(authority.root)]
    assert subprocess.check_output([*curl, f"{url}/large"], timeout=30) == LARGE
    echoed = subprocess.check_output([*curl, "--data-binary", f"@{tmp_path / 'sent'}", f"{url}/echo"], timeout=30)
    assert echoed == (tmp_path / "sent").read_bytes()


def test_a_client_gets_the_certificate_of_the_name_that_it_asks_for(serve, authority):
    more = []
    for name, host in (("one-", "one.example"), ("wild-", "*.wild.example")):
        authority.write(authority.made.issue_cert(host), name)
        for option, kind in (("--certfile", "chain"), ("--keyfile", "key")):
            more += [option, str(authority.directory / f"{name}{kind}.pem")]
    with serve(*more) as server:
        context = authority.client()
        for host in ("one.example", "a.wild.example", "localhost"):
            assert environ(server, context, host=host)["SSL_TLS_SNI"] == host
        # None has this name: the first one.
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'b\.a\.wild\.example'"):
            connect(server, context, host="b.a.wild.example")


def test_old_versions_are_refused(shared, serve, authority):
    with serve("--tls-min", "1.3") as server:
        assert environ(server, authority.client(tls="1.3"))["SSL_PROTOCOL"] == "TLSv1.3"
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            connect(server, authority.client(tls="1.2"))
    said = openssl(shared[0], "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    assert re.search("alert (protocol version|handshake failure)", said), said
    serves_on(*shared)


def test_only_http_1_is_negotiated(shared):
    server, authority = shared
    context = authority.client()
    # The last as curl -0 does it.
    for offered, selected in (
        (["h2", "http/1.1"], "http/1.1"),
        (["http/1.0", "http/1.1"], "http/1.1"),
        (["http/1.0"], "http/1.0"),
    ):
        context.set_alpn_protocols(offered)
        with connect(server, context) as sock:
            assert sock.selected_alpn_protocol() == selected
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        connect(server, context)


def test_clients_show_certificates(serve, authority, tmp_path):
    clients, others = trustme.CA(), trustme.CA()
    clients.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    issued = {
        "good": clients.issue_cert("alice@example.com", common_name="Alice, of Example"),
        "bad": others.issue_cert("mallory@example.com"),
    }
    for name, each in issued.items():
        each.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))

    def client(name):
        context = authority.client()
        if name:
            context.load_cert_chain(str(tmp_path / f"{name}.pem"))
        return context

    with serve("--client-ca", str(tmp_path / "clients.pem"), "--client-cert", "optional") as server:
        assert environ(server, client(""))["SSL_CLIENT_VERIFY"] == "NONE"
        found = environ(server, client("good"))
        assert found["SSL_CLIENT_VERIFY"] == "SUCCESS"
        assert found["SSL_CLIENT_S_DN"].startswith("CN=Alice\\, of Example,")
        assert found["SSL_CLIENT_I_DN"].endswith(f"O=trustme v{trustme.__version__}")
        assert found["SSL_CLIENT_CERT"].encode() == issued["good"].cert_chain_pems[0].bytes()
        assert re.fullmatch("([0-9A-F]{2})+", found["SSL_CLIENT_M_SERIAL"])
        with pytest.raises((ssl.SSLError, ConnectionError)):
            environ(server, client("bad"))
    with serve("--client-ca", str(tmp_path / "clients.pem")) as server:
        assert environ(server, client("good"))["SSL_CLIENT_VERIFY"] == "SUCCESS"
        for name in ("", "bad"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                environ(server, client(name))


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_a_session_is_resumed_by_any_worker_and_after_a_reload(operated, authority, tls):
    server, _, _ = operated
    context = authority.client(tls=tls)
    with connect(server, context) as sock:
        served = {json.loads(ask(sock).body)["pid"]}
        assert not sock.session_reused
        session = sock.session

    def resumes():
        with connect(server, context, session=session) as sock:
            served.add(json.loads(ask(sock).body)["pid"])
            assert sock.session_reused
        return len(served) > 1

    server.until(resumes, "another worker")
    server.tell(signal.SIGHUP)
    server.logged("reload complete")
    resumes()
    server.stop()


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
@pytest.mark.parametrize("mode", ["required", "optional"])
def test_a_client_certificate_is_checked_at_each_handshake(serve, authority, tmp_path, tls, mode):
    clients = tmp_path / "clients.pem"
    made = trustme.CA()
    made.cert_pem.write_to_path(str(clients))
    made.issue_cert("alice@example.com").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "alice.pem"))
    context = authority.client(tls=tls)
    context.load_cert_chain(str(tmp_path / "alice.pem"))
    with serve("--client-ca", str(clients), "--client-cert", mode) as server:
        session = None
        for _ in range(2):
            with connect(server, context, session=session) as sock:
                assert json.loads(ask(sock).body)["SSL_CLIENT_VERIFY"] == "SUCCESS"
                assert not sock.session_reused
                session = sock.session
        assert session is None or not session.has_ticket
        # The authority is removed.
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        (tmp_path / "other.pem").rename(clients)

        def is_refused():
            try:
                environ(server, context, session=session)
            except (ssl.SSLError, ConnectionError):
                return True
            return False

        eventually(is_refused, "the new authorities")


def test_keys_may_be_encrypted_and_of_any_form(tmp_path, authority, serve):
    need_tool("openssl")
    forms = {
        "pkcs8": ["openssl", "pkcs8", "-topk8", "-nocrypt"],
        "scrypt": ["openssl", "pkcs8", "-topk8", "-scrypt", "-passout", "pass:secret"],
        "pbkdf2": ["openssl", "pkcs8", "-topk8", "-v2", "aes256", "-passout", "pass:secret"],
        "sec1": ["openssl", "ec"],
    }
    (tmp_path / "password").write_text("secret\n")
    more = ["--keyfile-password-file", str(tmp_path / "password")]
    for name, command in forms.items():
        key = tmp_path / f"{name}.pem"
        subprocess.run([*command, "-in", str(authority.key), "-out", str(key)], check=True, capture_output=True)
        more += ["--certfile", str(authority.chain), "--keyfile", str(key)]
    # One that cannot be read ends the start.
    with serve(*more, certificates=False) as server:
        serves_on(server, authority)


def refused(tmp_path, *arguments):
    done = tailrace("app:app", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done
    return done.stderr


def test_what_cannot_be_served_is_one_sentence_at_the_start(tmp_path, authority):
    bind = ("--bind", "https://127.0.0.1:0")
    other = authority_in(tmp_path)
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(authority.key), "-out"]
    subprocess.run([*command, str(encrypted)], check=True, capture_output=True)
    (tmp_path / "wrong").write_text("wrong")
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "half.pem").write_bytes(authority.chain.read_bytes()[:400])
    (tmp_path / "begun.pem").write_text("-----BEGIN CERTIF")
    chain, key = ("--certfile", str(authority.chain)), ("--keyfile", str(authority.key))
    for arguments, said in (
        ((), "needs a certificate; add --certfile and --keyfile, or --self-signed for development"),
        (("--certfile", "absent.pem"), "absent.pem: cannot be read: no such file or directory"),
        (("--certfile", str(tmp_path / "empty.pem")), "has no certificate; it must be PEM"),
        (
            ("--certfile", str(tmp_path / "half.pem")),
            "half.pem: is not valid PEM: -----END CERTIFICATE----- is missing; the file may be incomplete",
        ),
        (
            ("--certfile", str(tmp_path / "begun.pem")),
            'begun.pem: is not valid PEM: the line "-----BEGIN CERTIF" is malformed; the file may be incomplete',
        ),
        (chain, "chain.pem: has no private key; it must be PEM"),
        ((*chain, "--keyfile", str(other.key)), "the private key is not that of the certificate in"),
        ((*chain, "--keyfile", str(encrypted)), "is encrypted; name a file with its password"),
        (
            (*chain, "--keyfile", str(encrypted), "--keyfile-password-file", str(tmp_path / "wrong")),
            "cannot be decrypted; check --keyfile-password-file",
        ),
        ((*chain, *key, *key), "there must be one --keyfile for each --certfile, in the same order, or none"),
        ((*chain, *key, "--self-signed"), "--self-signed makes a certificate, and --certfile names one"),
        ((*chain, *key, "--client-ca", str(authority.key)), "has no certificate"),
    ):
        assert said in refused(tmp_path, *bind, *arguments), arguments
    for arguments in ((*bind, *key), ("--bind", "127.0.0.1:0", *key), ("--debug", "--bind", "127.0.0.1:0", *key)):
        assert "--keyfile is set without --certfile; set --certfile" in refused(tmp_path, *arguments)
    assert "--redirect-http needs an https:// address" in refused(tmp_path, "--redirect-http", "127.0.0.1:0")
    said = refused(tmp_path, "--status", "https://127.0.0.1:0")
    assert "--status https://127.0.0.1:0 needs a certificate; add --certfile" in said
    assert "HAProxy asks its agents in plain text" in refused(
        tmp_path, "--bind", "127.0.0.1:0", "--haproxy-agent", "https://:1"
    )


@pytest.fixture
def operated(tmp_path, authority):
    """A server whose certificate is behind links that are swapped, as cert-manager does it."""
    (tmp_path / "app.py").write_text(APP)
    address = free_address()
    live = tmp_path / "live"

    def place(issued, name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "chain.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        (folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
        (tmp_path / "new").symlink_to(folder)
        (tmp_path / "new").rename(live)

    place(authority.made.issue_cert("localhost"), "first")
    arguments = ("app:app", "--workers", "2", "--bind", f"https://{address.place}")
    arguments += ("--certfile", str(live / "chain.pem"), "--keyfile", str(live / "key.pem"))
    with Operated(tmp_path, *arguments, address=address, binds=False) as server:
        server.logged("ready in", 2)
        yield server, place, live


def serial(server, context):
    with connect(server, context) as sock:
        return sock.getpeercert()["serialNumber"]


def test_a_certificate_that_changes_is_served_and_connections_stay(operated, authority):
    server, place, live = operated
    context = authority.client()
    before = serial(server, context)
    with connect(server, context) as kept:
        ask(kept)
        place(authority.made.issue_cert("localhost"), "second")
        server.logged("certificates have changed and are used from now on")
        server.until(lambda: len({serial(server, context) for _ in range(8)} - {before}) == 1, "the new certificate")
        server.until(lambda: before not in {serial(server, context) for _ in range(8)}, "no worker with the old one")
        assert ask(kept).status == 200
        now = serial(server, context)
        # What cannot be used is one line, and the one before stays, also in workers that begin then.
        (live / "chain.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        server.tell(signal.SIGHUP)
        server.logged("reload complete")
        assert server.log.count("; the certificate before is kept") == 1
        past = datetime.datetime.now(tz=datetime.timezone.utc) - datetime.timedelta(days=1)
        place(authority.made.issue_cert("localhost", not_after=past), "expired")
        server.logged("the certificate has expired; the certificate before is kept")
        place(authority.made.issue_cert("localhost"), "third")
        (live / "key.pem").write_bytes(authority.key.read_bytes())
        server.logged("is not that of the certificate in")
        assert {serial(server, context) for _ in range(8)} == {now}
    assert server.stop() == 0


def test_a_certificate_is_renewed_though_another_one_cannot_be_used(serve, authority):
    past = datetime.datetime.now(tz=datetime.timezone.utc) - datetime.timedelta(days=1)
    authority.write(authority.made.issue_cert("other.example", not_after=past), "other-")
    other = authority.directory / "other-chain.pem"
    files = ("--certfile", str(other), "--keyfile", str(authority.directory / "other-key.pem"))
    with serve(
        "--certfile", str(authority.chain), "--keyfile", str(authority.key), *files, certificates=False
    ) as server:
        context = authority.client()
        for is_malformed in (False, True):
            if is_malformed:
                other.write_text("-----BEGIN CERTIFICATE-----\nnonsense")
            before = serial(server, context)
            authority.write(authority.made.issue_cert("localhost"))
            eventually(lambda before=before: serial(server, context) != before, "the new certificate")
        assert server.logged("other-chain.pem: is not valid PEM")
        assert server.log.count(f"certificate {other} (") == 1, "it is announced at the start alone"


def test_a_client_without_tls_is_told_and_one_with_tls_elsewhere_is_logged(shared, serve, authority):
    with shared[0].address.connect_plain() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        said = Client.on(sock).rest()
    assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert said.endswith(b"\r\n\r\nThis port serves HTTPS. Write https:// instead of http://.")
    serves_on(*shared)
    plain = free_address()
    with serve("--bind", plain.place, address=plain, certificates=False) as server:
        for _ in range(2):
            with plain.connect_plain() as sock, pytest.raises((ssl.SSLError, OSError)):
                authority.client().wrap_socket(sock, server_hostname="localhost")
        assert server.logged("because it speaks TLS to an address that is not encrypted. Bind an https:// address")
        assert server.log.count("speaks TLS") == 1


def test_a_proxy_header_comes_before_the_handshake(serve, authority):
    address = free_address()
    bind = ("--bind", f"https://{address.place}?proxy=v2")
    with serve(*bind, "--trusted-proxies", "127.0.0.1", address=address) as server:
        header = b"\r\n\r\n\0\r\nQUIT\n" + bytes((0x21, 0x11)) + struct.pack("!H", 12)
        header += socket.inet_aton("192.0.2.9") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 4711, 443)
        hello = hello_of(authority)
        # In one piece, apart, and byte by byte.
        for pieces in ([header + hello], [header, hello], [bytes((byte,)) for byte in header + hello]):
            with server.address.connect_plain() as sock:
                for piece in pieces:
                    sock.sendall(piece)
                assert sock.recv(3) == b"\x16\x03\x03"
        with server.address.connect_plain() as sock:
            sock.sendall(header)
            with authority.client().wrap_socket(sock, server_hostname="localhost") as encrypted:
                found = json.loads(ask(encrypted).body)
                assert (found["REMOTE_ADDR"], found["REMOTE_PORT"]) == ("192.0.2.9", "4711")
                assert found["SSL_PROTOCOL"] == "TLSv1.3"


def test_http_is_redirected(serve):
    plain = free_address()
    challenges = "/.well-known/acme-challenge/"
    with serve("--redirect-http", plain.place) as server:
        port = server.address.port
        for target, host, location in (
            ("/a/b?c=d", "shop.example", f"https://shop.example:{port}/a/b?c=d"),
            ("/", "shop.example:8080", f"https://shop.example:{port}/"),
            ("/%0d%0aX:y", "[::1]:80", f"https://[::1]:{port}/%0d%0aX:y"),
            ("http://other.example/x", "other.example", f"https://other.example:{port}/x"),
            *(
                (f"{challenges}{rest}", "a", f"https://a:{port}{challenges}{rest}")
                for rest in ("../../env", "%2e%2e/env", "..%2fenv", "token/", "")
            ),
        ):
            with Client(plain) as client:
                client.send(f"POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc".encode())
                response = client.response()
                assert (response.status, response["Location"]) == (308, location)
        for sent, version, status in (
            ("GET / HTTP/1.0\r\n\r\n", "1.0", 400),
            (f"GET {challenges}to-ken_1 HTTP/1.1\r\nHost: a\r\n\r\n", "1.1", 200),
        ):
            with Client(plain) as client:
                assert client.ask(sent.encode(), version=version).status == status


def wire(server, context, target, version="1.1"):
    client = Client.on(connect(server, context))
    client.send(f"GET {target} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return client


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_a_client_sees_whether_a_response_is_whole(shared, tls):
    server, authority = shared
    context = authority.client(tls=tls)
    with wire(server, context, "/until-close", "1.0") as client:
        assert client.response(version="1.0").body == b"y" * 50_000 + b"z" * 50_000
        client.at_end(clean=True)
    for target, version in (("/short", "1.1"), ("/breaks", "1.1"), ("/breaks", "1.0")):
        with wire(server, context, target, version) as client, pytest.raises(Broken) as broken:
            client.response(version=version)
        # Else the framing shows it.
        assert broken.value.reset or version == "1.1", (target, version)


def test_the_end_of_a_large_response_is_seen_by_a_slow_client(shared):
    server, authority = shared
    with wire(server, authority.client(), "/large") as client:
        time.sleep(0.3)
        assert client.response().body == LARGE
        client.at_end(clean=True)


class Raw:
    """A connection whose encrypted bytes pass through the hands of the test, a byte at a time or so many."""

    def __init__(self, sock, authority, *, tls="", step=1):
        self.sock, self.size = sock, step
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = authority.client(tls=tls).wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def send(self):
        while piece := self.outgoing.read(self.size):
            self.sock.sendall(piece)

    def step(self, action):
        while True:
            try:
                return action()
            except ssl.SSLWantReadError:
                self.send()
                received = self.sock.recv(self.size)
                if received:
                    self.incoming.write(received)
                else:
                    self.incoming.write_eof()


def hello_of(authority):
    """The first message of a handshake."""
    raw = Raw(None, authority)
    with pytest.raises(ssl.SSLWantReadError):
        raw.tls.do_handshake()
    return raw.outgoing.read()


def test_a_handshake_may_arrive_byte_by_byte_and_the_end_with_its_last(shared):
    server, authority = shared
    with server.address.connect_plain() as sock:
        raw = Raw(sock, authority)
        raw.step(raw.tls.do_handshake)
        raw.tls.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw.send()
        assert raw.step(lambda: raw.tls.read(12)) == b"HTTP/1.1 200"
    with server.address.connect_plain() as sock:
        raw = Raw(sock, authority)
        raw.step(raw.tls.do_handshake)
        # In one segment, and so in one event.
        sock.send(raw.outgoing.read(), socket.MSG_MORE)
        sock.shutdown(socket.SHUT_WR)
        assert raw.step(lambda: raw.tls.read(1)) == b"", "its close_notify"


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_a_client_may_end_its_direction_by_tls_alone(in_each_mode, tls):
    server, authority = in_each_mode
    with server.address.connect_plain() as sock:
        raw = Raw(sock, authority, tls=tls)
        raw.step(raw.tls.do_handshake)
        raw.send()
        raw.tls.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nsome body")
        with pytest.raises(ssl.SSLWantReadError):
            raw.tls.unwrap()
        # The request and the close_notify in one segment, and no end of the TCP stream.
        sock.sendall(raw.outgoing.read())
        said = b""
        with pytest.raises(ssl.SSLZeroReturnError):
            while True:
                said += raw.step(lambda: raw.tls.read(4096))
        assert said.endswith(b"some body"), "and then the server's close_notify"


def test_a_handshake_that_stalls_is_ended_and_others_are_served(serve, authority):
    with serve("--header-timeout", "2") as server:
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100
        stalled = [server.address.connect_plain() for _ in range(50)]
        for number, sock in enumerate(stalled):
            sock.sendall(hello[: number % 3 * 40])
        assert environ(server, authority.client())["HTTPS"] == "on"
        for sock in stalled:
            sock.settimeout(15)
            assert sock.recv(4096) in (b"", b"\x15\x03\x03\x00\x02\x01\x00")
            sock.close()


def test_a_handshake_that_stalls_after_a_proxy_header_has_the_time_of_a_head(serve, authority):
    address = free_address()
    bind = ("--bind", f"https://{address.place}?proxy=v1", "--trusted-proxies", "127.0.0.1")
    with serve(*bind, "--header-timeout", "1", "--keepalive-timeout", "600", address=address) as server:
        hello = hello_of(authority)
        for sent in (b"", hello[:40], hello):
            with server.address.connect_plain() as sock:
                sock.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 443\r\n" + sent)
                while sock.recv(65536):
                    pass


def test_handshakes_that_stall_are_shed_before_requests(serve, authority):
    with serve("--client-memory", "2M", "--header-timeout", "600") as server:
        stalled = [server.address.connect_plain() for _ in range(300)]
        for sock in stalled:
            sock.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"x" * 15_000)
        body = os.urandom(300_000)
        with connect(server, authority.client()) as sock:
            for _ in range(3):
                sock.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
                sock.sendall(body)
                response = Client.on(sock).response()
                assert (response.status, response.body) == (200, body)
        for sock in stalled:
            sock.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\xff\xff" + b"x" * 20_000,
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" * 5_000,
        b"\x16\x00\x00\x00\x00",
        b"\x17\x03\x03\x00\x10" + b"x" * 16,
        b"\x18\x03\x02\x00\x03\x01\x40\x00",
        b"\x80\x2e\x01\x03\x01" + b"x" * 60,
        # A message of 64 KiB, of which 20 have come.
        b"\x16\x03\x01\x3f\xf0\x01\x00\xff\xfc" + b"x" * 16_364 + b"\x16\x03\x01\x10\x00" + b"x" * 4096,
    ],
    ids=["too long", "short", "endless", "no version", "data first", "heartbeat", "SSLv2", "many records"],
)
def test_a_broken_hello_ends_its_connection_alone(shared, sent):
    server, _ = shared
    for _ in range(3):
        with server.address.connect_plain() as sock, contextlib.suppress(ConnectionError):
            sock.sendall(sent)
            # The socket waits less long than the server waits for a head.
            while sock.recv(4096):
                pass
    serves_on(*shared)


def test_renegotiation_is_refused(shared):
    need_tool("openssl")
    said = openssl(shared[0], "-tls1_2", sent=b"R\n")
    assert "RENEGOTIATING" in said
    assert re.search("no renegotiation|wrong version|handshake failure|unexpected message|error", said)


@pytest.mark.parametrize("mode", [[], ["--gevent"], ["--debug"]], ids=["threads", "gevent", "debug"])
def test_a_client_that_is_silent_after_its_handshake_does_not_hold_a_stop(serve, authority, mode):
    with serve(*mode, "--graceful-timeout", "600", "--keepalive-timeout", "600") as server:
        with connect(server, authority.client()):
            assert server.stop() == 0


def test_a_unix_socket_may_be_encrypted(tmp_path, authority, serve):
    need_tool("curl")
    path = tmp_path / "app.sock"
    address = free_address()
    with serve("--bind", f"https+unix:{path}", "--bind", f"https://{address.place}", address=address):
        curl = ["curl", "-sS", "--fail", "--cacert", str(authority.root), "--unix-socket", str(path)]
        found = json.loads(subprocess.check_output([*curl, "https://localhost/"], timeout=30))
        assert (found["HTTPS"], found["SERVER_NAME"], found["SERVER_PORT"]) == ("on", "localhost", "443")


def test_a_self_signed_certificate_is_made_once(serve, tmp_path):
    need_tool("curl")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    made = tmp_path / "cache/tailrace/self-signed.pem"
    contents = set()
    for _ in range(2):
        with serve("--self-signed", certificates=False, environment=environment) as server:
            assert made.stat().st_mode & 0o777 == 0o600
            contents.add(made.read_bytes())
            curl = ["curl", "-sS", "--fail", "--cacert", str(made), f"https://localhost:{server.address.port}/"]
            assert json.loads(subprocess.check_output(curl, timeout=30))["HTTPS"] == "on"
    assert len(contents) == 1


def test_the_expiry_of_a_certificate_is_shown(serve, authority):
    at = free_address()
    began = time.time()
    with serve(status=at):
        (shown,) = eventually(lambda: answer(at, "/status.json")["certificates"], "the certificate")
        assert shown["file"] == str(authority.chain)
        command = ["openssl", "x509", "-noout", "-enddate", "-in", str(authority.chain)]
        written = subprocess.check_output(command, text=True).strip().removeprefix("notAfter=")
        expires = ssl.cert_time_to_seconds(written)
        assert expires - time.time() - 1 <= shown["seconds_left"] <= expires - began + 1
        wanted = r'^tailrace_certificate_expiry_timestamp_seconds{file="(.*)"} (\S+)$'
        line = re.search(wanted, status_ask(at, "/metrics").body.decode(), re.MULTILINE)
        assert (line[1], float(line[2])) == (str(authority.chain), expires)


def test_the_status_address_may_be_encrypted(tmp_path, authority):
    (tmp_path / "app.py").write_text(APP)
    at = free_address()
    arguments = ("--certfile", str(authority.chain), "--keyfile", str(authority.key), "--workers", "1")

    def asks(command, host="localhost", **environment):
        given = (command, "--status", f"https://{host}:{at.port}", "--json")
        return tailrace(*given, env={**os.environ, **environment})

    with operating(tmp_path, "app:app", *arguments, "--status", f"https://{at.place}") as server:
        server.logged(f"status on https://{at.place} ")
        before = authority.client()
        with urllib.request.urlopen(f"https://localhost:{at.port}/ready", context=before, timeout=10) as answer:
            assert answer.read() == b"ready\n"
        # A name that only the certificate could have is answered: there, browsers check it.
        request = urllib.request.Request(f"https://localhost:{at.port}/ready", headers={"Host": "shop.example"})
        with urllib.request.urlopen(request, context=before, timeout=10) as answer:
            assert answer.status == 200
        found = asks("threads", SSL_CERT_FILE=str(authority.root))
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["workers"]
        for host, file in (("localhost", ""), ("127.0.0.2", str(authority.root))):
            refused = asks("threads", host, SSL_CERT_FILE=file)
            assert refused.returncode == 1
            if host == "localhost":
                assert "is not trusted" in refused.stderr
                assert "set SSL_CERT_FILE" in refused.stderr
            assert refused.stderr.count("\n") == 1, refused.stderr
        # Its process follows the files, too.
        authority.write(authority.made.issue_cert("other.example"))
        server.logged("certificates have changed")

        def is_renewed():
            try:
                connect_to(at, authority.client(), "other.example").close()
            except ssl.SSLCertVerificationError:
                return False
            return True

        server.until(is_renewed, "the new certificate")


def test_handshakes_are_counted(serve, authority):
    at = free_address()
    with serve("--tls-min", "1.3", status=at, workers=1) as server:
        context = authority.client()
        with connect(server, context) as first:
            ask(first)
            session = first.session
        connect(server, context, session=session).close()
        with pytest.raises(ssl.SSLError):
            connect(server, authority.client(tls="1.2"))
        with server.address.connect_plain() as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert plain.recv(100).startswith(b"HTTP/1.1 400")
        # One that has only connected is none.
        server.address.connect_plain().close()
        wanted = {"handshakes": 2, "resumed": 1, "failed_handshakes": 2}
        eventually(lambda: wanted.items() <= answer(at, "/status.json")["totals"].items(), "all are counted")


def test_nothing_is_lost_over_tls_while_the_server_reloads(operated, authority, monkeypatch):
    server, _, _ = operated
    context = authority.client()
    context.check_hostname = False
    monkeypatch.setattr(encrypted, "context", lambda: context)
    with Checking(replace(server.address, is_encrypted=True)) as clients:
        for turn in (1, 2, 3):
            clients.go_on()
            server.tell(signal.SIGHUP)
            server.logged("reload complete", turn)
        clients.go_on()
    assert server.stop() == 0


def test_a_browser_shows_the_page(shared):
    command = [need_tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors"]
    command += ["--dump-dom", f"https://localhost:{shared[0].address.port}/"]
    shown = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=120).decode()
    assert '"SSL_PROTOCOL": "TLSv1.3"' in shown


def test_each_mode_serves_over_tls(in_each_mode):
    server, authority = in_each_mode
    with connect(server, authority.client()) as sock:
        for target in ("/", "/large", "/"):
            assert ask(sock, target).status == 200


@contextlib.contextmanager
def unusual(server, tls=None):
    """A connection by a library that sends whatever it is told."""
    with warnings.catch_warnings():
        # It imports a module that Python is to lose.
        warnings.simplefilter("ignore", DeprecationWarning)
        from tlslite.api import HandshakeSettings, TLSConnection

    settings = HandshakeSettings()
    if tls is not None:
        settings.minVersion = settings.maxVersion = tls
    with server.address.connect_plain() as sock:
        connection = TLSConnection(sock)
        connection.handshakeClientCert(settings=settings, serverName="localhost")
        yield sock, connection


def change_keys(connection, kind):
    """0: the server need not change its own; 1: it must (RFC 8446 section 4.6.3)."""
    for _ in connection.send_keyupdate_request(kind):
        pass


def response_of(connection, count=1):
    said = b""
    while said.count(b"HTTP/1.1 200") < count or not said.endswith(b"}"):
        said += connection.read(min=1, max=16384)
    return said


REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_client_may_change_its_keys(shared):
    with unusual(shared[0]) as (_, connection):
        for kind in (0, 1) * 5:
            change_keys(connection, kind)
            connection.write(REQUEST)
            assert b"TLSv1.3" in response_of(connection)
        connection.write(REQUEST[:10])
        change_keys(connection, 1)
        connection.write(REQUEST[10:] + REQUEST)
        assert b"TLSv1.3" in response_of(connection, 2)


def test_a_flood_of_key_changes_ends_its_connection_alone(shared):
    with unusual(shared[0]) as (_, connection), pytest.raises(OSError):
        for _ in range(100_000):
            change_keys(connection, 1)
    serves_on(*shared)


def test_a_flood_of_records_without_content_ends_its_connection_alone(in_each_mode):
    with unusual(in_each_mode[0]) as (_, connection):
        from tlslite.messages import ApplicationData

        # tlslite forgets its keys when the connection has ended.
        with pytest.raises((OSError, AssertionError)):
            # Neither kind comes so often in a row that it is refused.
            for _ in range(300):
                change_keys(connection, 0)
                for _ in range(30):
                    for _ in connection._sendMsg(ApplicationData().create(b"")):
                        pass
    serves_on(*in_each_mode)


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_a_body_in_many_small_records_arrives_whole(in_each_mode, tls):
    server, authority = in_each_mode
    body = os.urandom(40_000)
    with server.address.connect_plain() as sock:
        raw = Raw(sock, authority, tls=tls, step=1 << 24)
        raw.step(raw.tls.do_handshake)
        raw.tls.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        raw.tls.write(b"Content-Length: %d\r\n\r\n" % len(body))
        for byte in body:
            raw.tls.write(bytes((byte,)))
        raw.send()
        received = b""
        while not received.endswith(body):
            received += raw.step(lambda: raw.tls.read(65536))
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("tls", [(3, 3), (3, 4)], ids=["1.2", "1.3"])
def test_records_may_be_small_and_one_that_was_changed_ends_its_connection_alone(shared, tls):
    with unusual(shared[0], tls) as (sock, connection):
        connection.recordSize = 1
        connection.write(REQUEST)
        assert b"HTTPS" in response_of(connection)
        sock.sendall(b"\x17\x03\x03\x00\x40" + b"\0" * 64)
        with pytest.raises(Exception, match="bad_record_mac"):
            connection.read(min=1, max=100)
    serves_on(*shared)
