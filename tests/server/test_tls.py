"""TLS: which certificate a client gets and what it has to show, with curl, OpenSSL and Python's ssl as clients."""

import datetime
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request
import warnings

import pytest
import trustme
from harness.addresses import free_address
from harness.encrypted import authority_in
from harness.operated import Checking, Operated
from harness.server import Server
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


@pytest.fixture
def authority(tmp_path):
    (tmp_path / "tls").mkdir()
    return authority_in(tmp_path / "tls")


@pytest.fixture
def serve(tmp_path, authority):
    (tmp_path / "app.py").write_text(APP)

    def serve(*arguments, address=None, certificates=True, **options):
        address = address or free_address()
        files = ("--certfile", str(authority.chain), "--keyfile", str(authority.key)) if certificates else ()
        bind = () if "--bind" in arguments else ("--bind", f"https://{address.place}")
        return Server("app:app", *arguments, *bind, *files, address=address, directory=tmp_path, **options)

    return serve


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
    client = Client.__new__(Client)
    client.sock, client.buffer, client.ended, client.reset = sock, b"", False, False
    client.send("\r\n".join([f"GET {target} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode())
    return client.response()


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


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_the_application_sees_what_the_handshake_has_shown(serve, authority, tls):
    with serve() as server:
        found = environ(server, authority.client(tls=tls))
        ciphers = {"1.3": "TLS_AES_256_GCM_SHA384", "1.2": "ECDHE-ECDSA-AES256-GCM-SHA384"}
        expected = {"HTTPS": "on", "wsgi.url_scheme": "https", "SSL_PROTOCOL": f"TLSv{tls}", "SSL_TLS_SNI": "localhost"}
        assert expected.items() <= found.items()
        assert found["SSL_CIPHER"] == ciphers[tls]
        assert found["SSL_CLIENT_VERIFY"] == "NONE"
        assert found["SERVER_PORT"] == str(server.address.port)
        # Without a name.
        context = authority.client()
        context.check_hostname = False
        assert "SSL_TLS_SNI" not in environ(server, context, host=None)


def test_curl_trusts_it_and_gets_whole_bodies_both_ways(serve, authority, tmp_path):
    need_tool("curl")
    (tmp_path / "sent").write_bytes(os.urandom(3_000_000))
    with serve() as server:
        url = f"https://localhost:{server.address.port}"
        curl = ["curl", "-sS", "--fail", "--cacert", str(authority.root)]
        got = subprocess.check_output([*curl, f"{url}/large"], timeout=30)
        assert got == b"0123456789" * 400_000
        echoed = subprocess.check_output([*curl, "--data-binary", f"@{tmp_path / 'sent'}", f"{url}/echo"], timeout=30)
        assert echoed == (tmp_path / "sent").read_bytes()


def test_a_client_gets_the_certificate_of_the_name_that_it_asks_for(serve, authority):
    for name, hosts in (("one-", ["one.example"]), ("wild-", ["*.wild.example"])):
        authority.write(authority.made.issue_cert(*hosts), name)
    files = [authority.directory / f"{name}{kind}.pem" for name in ("one-", "wild-") for kind in ("chain", "key")]
    more = ("--certfile", str(files[0]), "--keyfile", str(files[1]), "--certfile", str(files[2]), "--keyfile")
    with serve(*more, str(files[3])) as server:
        context = authority.client()
        for host in ("one.example", "a.wild.example", "localhost"):
            assert environ(server, context, host=host)["SSL_TLS_SNI"] == host
        # None has this name: the first one.
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'b\.a\.wild\.example'"):
            connect(server, context, host="b.a.wild.example")


def test_old_versions_are_refused(serve, authority):
    with serve("--tls-min", "1.3") as server:
        assert environ(server, authority.client(tls="1.3"))["SSL_PROTOCOL"] == "TLSv1.3"
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            connect(server, authority.client(tls="1.2"))
    with serve() as server:
        said = openssl(server, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
        assert re.search("alert (protocol version|handshake failure)", said), said
        assert environ(server, authority.client())["HTTPS"] == "on", "it serves on"


def test_only_http_1_1_is_negotiated(serve, authority):
    with serve() as server:
        both = authority.client()
        both.set_alpn_protocols(["h2", "http/1.1"])
        with connect(server, both) as sock:
            assert sock.selected_alpn_protocol() == "http/1.1"
        other = authority.client()
        other.set_alpn_protocols(["h2"])
        with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
            connect(server, other)


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
def test_a_session_is_resumed_by_any_worker_and_after_a_reload(tmp_path, authority, serve, tls):
    (tmp_path / "app.py").write_text(APP)
    address = free_address()
    arguments = ("app:app", "--workers", "3", "--certfile", str(authority.chain), "--keyfile", str(authority.key))
    arguments += ("--bind", f"https://{address.place}")
    with Operated(tmp_path, *arguments, address=address, binds=False) as server:
        server.logged("ready in", 3)
        context = authority.client(tls=tls)
        with connect(server, context) as sock:
            first = json.loads(ask(sock).body)["pid"]
            assert not sock.session_reused
            session = sock.session
        served = {first}

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


def test_an_ocsp_response_is_sent_with_the_certificate(serve, tmp_path):
    (tmp_path / "response.der").write_bytes(b"0\x03\n\x01\x01")
    with serve("--ocsp-file", str(tmp_path / "response.der")) as server:
        assert "OCSP response: no response" not in openssl(server, "-status")


def test_keys_may_be_encrypted_and_of_any_form(tmp_path, authority, serve):
    need_tool("openssl")
    forms = {
        "pkcs8": ["openssl", "pkcs8", "-topk8", "-nocrypt"],
        "scrypt": ["openssl", "pkcs8", "-topk8", "-scrypt", "-passout", "pass:secret"],
        "pbkdf2": ["openssl", "pkcs8", "-topk8", "-v2", "aes256", "-passout", "pass:secret"],
        "sec1": ["openssl", "ec"],
    }
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "app.py").write_text(APP)
    for name, command in forms.items():
        key = tmp_path / f"{name}.pem"
        subprocess.run([*command, "-in", str(authority.key), "-out", str(key)], check=True, capture_output=True)
        more = ("--certfile", str(authority.chain), "--keyfile", str(key), "--keyfile-password-file")
        with serve(*more, str(tmp_path / "password"), certificates=False) as server:
            assert environ(server, authority.client())["HTTPS"] == "on", name


def refused(tmp_path, *arguments):
    done = subprocess.run(
        ["tailrace", "app:app", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{os.path.dirname(os.sys.executable)}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2, done
    return done.stderr


def test_what_cannot_be_served_is_one_sentence_at_the_start(tmp_path, authority):
    (tmp_path / "app.py").write_text(APP)
    bind = ("--bind", "https://127.0.0.1:0")
    other = authority_in(tmp_path)
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(authority.key), "-out"]
    subprocess.run([*command, str(encrypted)], check=True, capture_output=True)
    (tmp_path / "wrong").write_text("wrong")
    (tmp_path / "empty.pem").write_text("")
    chain, key = ("--certfile", str(authority.chain)), ("--keyfile", str(authority.key))
    for arguments, said in (
        ((), "needs a certificate; add --certfile and --keyfile, or --self-signed for development"),
        (("--certfile", "absent.pem"), "absent.pem: cannot be read: no such file or directory"),
        (("--certfile", str(tmp_path / "empty.pem")), "has no certificate; it must be PEM"),
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
    assert "--redirect-http needs an https:// address" in refused(tmp_path, "--redirect-http", "127.0.0.1:0")
    said = refused(tmp_path, "--status", "https://127.0.0.1:0")
    assert "--status https://127.0.0.1:0 needs a certificate; add --certfile" in said
    assert "HAProxy asks its agents in plain text" in refused(
        tmp_path, "--bind", "127.0.0.1:0", "--agent", "https://:1"
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
    server.stop()
    assert server.process.returncode == 0


def test_a_client_without_tls_is_told_and_one_with_tls_elsewhere_is_logged(serve, authority):
    with serve() as server:
        with server.address.connect_plain() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            said = b""
            while data := sock.recv(4096):
                said += data
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert said.endswith(b"\r\n\r\nThis port serves HTTPS. Write https:// instead of http://.")
        assert environ(server, authority.client())["HTTPS"] == "on"
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
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
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


def test_http_is_redirected_and_browsers_are_told_to_stay(serve, authority, tmp_path):
    plain = free_address()
    (tmp_path / "hooks").mkdir()
    more = ("--redirect-http", plain.place, "--hsts", "600; includeSubDomains")
    with serve(*more) as server:
        port = server.address.port
        for target, host, location in (
            ("/a/b?c=d", "shop.example", f"https://shop.example:{port}/a/b?c=d"),
            ("/", "shop.example:8080", f"https://shop.example:{port}/"),
            ("/%0d%0aX:y", "[::1]:80", f"https://[::1]:{port}/%0d%0aX:y"),
            ("http://other.example/x", "other.example", f"https://other.example:{port}/x"),
        ):
            with Client(plain) as client:
                client.send(f"POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc".encode())
                response = client.response()
                assert (response.status, response["Location"]) == (308, location)
                assert "Strict-Transport-Security" not in response
        with Client(plain) as client:
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            assert client.response(version="1.0").status == 400
        with Client(plain) as client:
            client.send(b"GET /.well-known/acme-challenge/token HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.response().status == 200
        with connect(server, authority.client()) as sock:
            for target in ("/", "/large"):
                assert ask(sock, target)["Strict-Transport-Security"] == "max-age=600; includeSubDomains"
            broken = Client.__new__(Client)
            broken.sock, broken.buffer, broken.ended, broken.reset = sock, b"", False, False
            broken.send(b"nonsense\r\n\r\n")
            response = broken.response()
            assert (response.status, response["Strict-Transport-Security"]) == (400, "max-age=600; includeSubDomains")


def wire(server, context, target, version="1.1"):
    client = Client.__new__(Client)
    client.sock, client.buffer, client.ended, client.reset = connect(server, context), b"", False, False
    client.send(f"GET {target} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return client


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_a_client_sees_whether_a_response_is_whole(serve, authority, tls):
    context = authority.client(tls=tls)
    with serve() as server:
        with wire(server, context, "/until-close", "1.0") as client:
            assert client.response(version="1.0").body == b"y" * 50_000 + b"z" * 50_000
            client.at_end(clean=True)
        for target, version in (("/short", "1.1"), ("/breaks", "1.1"), ("/breaks", "1.0")):
            with wire(server, context, target, version) as client, pytest.raises(Broken) as broken:
                client.response(version=version)
            # Else the framing shows it.
            assert broken.value.reset or version == "1.1", (target, version)


def test_the_end_of_a_large_response_is_seen_by_a_slow_client(serve, authority):
    with serve() as server, wire(server, authority.client(), "/large") as client:
        time.sleep(0.3)
        response = client.response()
        assert response.body == b"0123456789" * 400_000
        client.at_end(clean=True)


class Raw:
    """A connection whose encrypted bytes pass through the hands of the test."""

    def __init__(self, sock, authority):
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = authority.client().wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def send(self):
        """Byte by byte."""
        for byte in self.outgoing.read():
            self.sock.sendall(bytes((byte,)))

    def step(self, action):
        while True:
            try:
                return action()
            except ssl.SSLWantReadError:
                self.send()
                received = self.sock.recv(1)
                if received:
                    self.incoming.write(received)
                else:
                    self.incoming.write_eof()


def test_a_handshake_may_arrive_byte_by_byte(serve, authority):
    with serve() as server, server.address.connect_plain() as sock:
        raw = Raw(sock, authority)
        raw.step(raw.tls.do_handshake)
        raw.tls.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw.send()
        assert raw.step(lambda: raw.tls.read(12)) == b"HTTP/1.1 200"


def test_an_end_that_comes_with_the_last_of_the_handshake_is_seen(serve, authority):
    with serve() as server, server.address.connect_plain() as sock:
        raw = Raw(sock, authority)
        raw.step(raw.tls.do_handshake)
        # In one segment, and so in one event.
        sock.send(raw.outgoing.read(), socket.MSG_MORE)
        sock.shutdown(socket.SHUT_WR)
        assert raw.step(lambda: raw.tls.read(1)) == b"", "its close_notify"


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
    ],
    ids=["too long", "short hello", "endless hello", "no version", "data first", "heartbeat", "SSLv2"],
)
def test_a_broken_hello_ends_its_connection_alone(serve, authority, sent):
    with serve() as server:
        for _ in range(3):
            with server.address.connect_plain() as sock:
                try:
                    sock.sendall(sent)
                    while sock.recv(4096):
                        pass
                except ConnectionError:
                    pass
        assert environ(server, authority.client())["HTTPS"] == "on"


def test_renegotiation_is_refused(serve):
    need_tool("openssl")
    with serve() as server:
        said = openssl(server, "-tls1_2", sent=b"R\n")
        assert "RENEGOTIATING" in said
        assert re.search("no renegotiation|wrong version|handshake failure|unexpected message|error", said)


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
    status = free_address()
    with serve("--status", status.place) as server:
        environ(server, authority.client())

        def answer(path):
            with Client(status) as client:
                client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                return client.response().body.decode()

        (shown,) = json.loads(answer("/status.json"))["certificates"]
        assert shown["file"] == str(authority.chain)
        expires = ssl.cert_time_to_seconds(
            subprocess.check_output(["openssl", "x509", "-noout", "-enddate", "-in", str(authority.chain)])
            .decode()
            .strip()
            .removeprefix("notAfter=")
        )
        assert abs(time.time() + shown["seconds_left"] - expires) < 10
        wanted = r'^tailrace_certificate_expiry_timestamp_seconds{file="(.*)"} (\S+)$'
        line = re.search(wanted, answer("/metrics"), re.MULTILINE)
        assert (line[1], float(line[2])) == (str(authority.chain), expires)


def test_the_status_address_may_be_encrypted(tmp_path, authority):
    (tmp_path / "app.py").write_text(APP)
    at = free_address()
    arguments = ("--certfile", str(authority.chain), "--keyfile", str(authority.key), "--workers", "1")

    def asks(command, host="localhost", **environment):
        return subprocess.run(
            [sys.executable, "-m", "tailrace", command, "--status", f"https://{host}:{at.port}", "--json"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    with Operated(tmp_path, "app:app", *arguments, "--status", f"https://{at.place}") as server:
        server.serves()
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
        server.stop()


def test_handshakes_are_counted(serve, authority):
    at = free_address()
    with serve("--tls-min", "1.3", status=at, workers=1) as server:

        def counts():
            with urllib.request.urlopen(f"{at.url}/status.json", timeout=10) as answer:
                counters = json.load(answer)["totals"]
            return tuple(counters[name] for name in ("handshakes", "resumed", "failed_handshakes"))

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
        eventually(lambda: counts() == (2, 1, 2), "all are counted")


def test_nothing_is_lost_over_tls_while_the_server_reloads(operated, authority, monkeypatch):
    from dataclasses import replace

    from harness import encrypted

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
    server.stop()
    assert server.process.returncode == 0


def test_a_browser_shows_the_page(serve):
    chromium = need_tool("chromium")
    with serve() as server:
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors", "--dump-dom"]
        shown = subprocess.check_output(
            [*command, f"https://localhost:{server.address.port}/"], stderr=subprocess.DEVNULL, timeout=120
        ).decode()
    assert '"SSL_PROTOCOL": "TLSv1.3"' in shown


def test_greenlets_serve_over_tls(serve, authority):
    with serve("--gevent") as server, connect(server, authority.client()) as sock:
        for target in ("/", "/large", "/"):
            assert ask(sock, target).status == 200


def test_debug_serves_over_tls(serve, authority):
    with serve("--debug") as server, connect(server, authority.client()) as sock:
        for target in ("/", "/large", "/"):
            assert ask(sock, target).status == 200


def unusual(server, tls=None):
    """A connection by a library that sends whatever it is told."""
    with warnings.catch_warnings():
        # It imports a module that Python is to lose.
        warnings.simplefilter("ignore", DeprecationWarning)
        from tlslite.api import HandshakeSettings, TLSConnection

    settings = HandshakeSettings()
    if tls is not None:
        settings.minVersion = settings.maxVersion = tls
    sock = server.address.connect_plain()
    connection = TLSConnection(sock)
    connection.handshakeClientCert(settings=settings, serverName="localhost")
    return sock, connection


def response_of(connection, count=1):
    said = b""
    while said.count(b"HTTP/1.1 200") < count or not said.endswith(b"}"):
        said += connection.read(min=1, max=16384)
    return said


REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_client_may_change_its_keys(serve):
    with serve() as server:
        sock, connection = unusual(server)
        # 0: the server need not change its own; 1: it must (RFC 8446 section 4.6.3).
        for kind in (0, 1) * 5:
            for _ in connection.send_keyupdate_request(kind):
                pass
            connection.write(REQUEST)
            assert b"TLSv1.3" in response_of(connection)
        connection.write(REQUEST[:10])
        for _ in connection.send_keyupdate_request(1):
            pass
        connection.write(REQUEST[10:] + REQUEST)
        assert b"TLSv1.3" in response_of(connection, 2)
        sock.close()


def test_a_flood_of_key_changes_ends_its_connection_alone(serve, authority):
    with serve() as server:
        sock, connection = unusual(server)
        with pytest.raises(OSError):
            for _ in range(100_000):
                for _ in connection.send_keyupdate_request(1):
                    pass
        sock.close()
        assert environ(server, authority.client())["HTTPS"] == "on"


@pytest.mark.parametrize("tls", [(3, 3), (3, 4)], ids=["1.2", "1.3"])
def test_records_may_be_small_or_empty(serve, tls):
    with serve() as server:
        sock, connection = unusual(server, tls)
        connection.recordSize = 1
        connection.write(REQUEST)
        assert b"HTTPS" in response_of(connection)
        sock.close()


@pytest.mark.parametrize("tls", [(3, 3), (3, 4)], ids=["1.2", "1.3"])
def test_a_record_that_was_changed_ends_its_connection_alone(serve, authority, tls):
    with serve() as server:
        sock, connection = unusual(server, tls)
        connection.write(REQUEST)
        response_of(connection)
        sock.sendall(b"\x17\x03\x03\x00\x40" + b"\0" * 64)
        with pytest.raises(Exception, match="bad_record_mac"):
            connection.read(min=1, max=100)
        sock.close()
        assert environ(server, authority.client())["HTTPS"] == "on"
