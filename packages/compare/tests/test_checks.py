"""The strict reader: what it accepts, and the sentence for each fault."""

import re
import socket
import threading
from email.utils import formatdate

import pytest
from tailrace_compare import checks
from tailrace_compare.checks import CheckedCell, Expected, Wrong
from tailrace_compare.results import Cell, Sample
from tailrace_compare.served import files

HEAD = (("Content-Type", "text/plain"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))
SET = b"Content-Type: text/plain\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
WITH_LENGTH = b"HTTP/1.1 200 OK\r\n" + SET + b"Content-Length: 5\r\n\r\nslept"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + SET + b"Transfer-Encoding: chunked\r\n\r\n2\r\nsl\r\n3;x=y\r\nept\r\n0\r\n\r\n"
CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + SET + b"\r\nslept"
EXPECTED = Expected(head=HEAD, body=b"slept")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CLOSE_SECONDS", 0.2)


def answered(answer: bytes, expected: Expected = EXPECTED, *, stays: bool = True, times: int = 2) -> checks.Message:
    """Checks a server that gives this answer to every request on a connection, `times` at most. stays: it leaves the
    connection open afterwards."""
    client, server = socket.socketpair()
    over = threading.Event()

    def serve() -> None:
        with server:
            for _ in range(times):
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    part = server.recv(4096)
                    if not part:
                        return
                    asked += part
                server.sendall(answer)
            if stays:
                over.wait(10)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client:
            return checks.check(lambda: client, expected)
    finally:
        over.set()
        thread.join()


def fault(answer: bytes, expected: Expected = EXPECTED, *, stays: bool = False, times: int = 1) -> str:
    with pytest.raises(Wrong) as wrong:
        answered(answer, expected, stays=stays, times=times)
    assert str(wrong.value).startswith("disqualified: ")
    return str(wrong.value.args[0])


@pytest.mark.parametrize(
    "answer",
    [
        WITH_LENGTH,
        CHUNKED,
        CHUNKED.replace(b"0\r\n\r\n", b"000\r\nX-Sum: 1\r\n\r\n"),
        WITH_LENGTH.replace(b"Content-Type: text/plain\r\n", b"Server: x\r\nCONTENT-TYPE:text/plain \r\n"),
        WITH_LENGTH.replace(b"200 OK", b"200 "),
        WITH_LENGTH.replace(b"HTTP/1.1 200", b"HTTP/1.0 200").replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WITH_LENGTH,
        WITH_LENGTH.replace(b"\r\n", b"\r\nDate: NOW\r\n", 1),
    ],
)
def test_what_the_rfcs_allow_is_accepted_twice_on_a_connection(answer: bytes) -> None:
    assert answered(answer.replace(b"NOW", formatdate(usegmt=True).encode())).status == 200


@pytest.mark.parametrize("answer", [CLOSED, CLOSED.replace(b"1.1", b"1.0").replace(b"Connection: close\r\n", b"")])
def test_an_answer_may_end_with_its_connection(answer: bytes) -> None:
    assert answered(answer, stays=False, times=1).body == b"slept"


def test_an_answer_without_a_date_deserves_a_remark_and_a_wrong_date_is_a_fault() -> None:
    past = WITH_LENGTH.replace(b"\r\n", b"\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n", 1)
    assert re.match(r"Date is [\d,]+ s off", fault(past))
    assert checks.remarks(answered(WITH_LENGTH)) == ["no Date (RFC 9110, section 6.6.1)"]
    date = b"Date: " + formatdate(usegmt=True).encode() + b"\r\n"
    assert checks.remarks(answered(WITH_LENGTH.replace(b"Set-Cookie", date + b"Set-Cookie", 1))) == []


def test_an_answer_to_a_condition_has_no_body() -> None:
    expected = Expected(fields=("If-None-Match: *",), status=304, body=b"")
    assert answered(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", expected).status == 304
    answer = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nslept"
    assert fault(answer, expected) == "5 bytes after the end of the response: 'slept'"


# What becomes of WITH_LENGTH, and the sentence.
FAULTS = [
    (b"HTTP/1.1 200", b"HTTP/2 200", "not a status line: 'HTTP/2 200 OK'"),
    (b"200 OK", b"200OK", "not a status line: 'HTTP/1.1 200OK'"),
    (b"200 OK", b"404 No", "status 404 instead of 200"),
    (b"200 OK\r\n", b"200 OK\n", "the status line ends with a bare line feed: 'HTTP/1.1 200 OK'"),
    (b"Content-Type:", b"Content-Type :", "not a header field: 'Content-Type : text/plain'"),
    (b"text/plain", b"text/\x00plain", "not a header field: 'Content-Type: text/\\x00plain'"),
    (b"text/plain", b"text/\rplain", "not a header field: 'Content-Type: text/\\rplain'"),
    (b"text/plain", b"text/\r\n plain", "a header field is folded over two lines (RFC 9112, section 5.2): ' plain'"),
    (b"Content-Type: text/plain\r\n", b"", "header field Content-Type, which the application set, is missing"),
    (b"text/plain", b"text/html", "header field Content-Type is 'text/html' instead of 'text/plain'"),
    (b"Content-Type", b"X-Extra: 1\r\nContent-Type", "header field X-Extra, which the application did not set"),
    (b"\r\nSet-Cookie: b=2", b"", "the application's 2 Set-Cookie fields arrive as 1"),
    (b"\r\nSet-Cookie: b", b", b", "the application's 2 Set-Cookie fields arrive as 1"),
    (b"a=1", b"a=2", "header field Set-Cookie is 'a=2, b=2' instead of 'a=1, b=2'"),
    (b"Content-Type", b"Content-Type: text/plain\r\nContent-Type", "header field Content-Type arrives 2 times"),
    (b"Content-Length", b"Content-Length: 5\r\nContent-Length", "header field Content-Length arrives 2 times"),
    (b"Length: 5", b"Length: +5", "Content-Length is not a number: '+5'"),
    (b"Length: 5", b"Length: 125", "body is 120 bytes short of its Content-Length (125)"),
    (b"Length: 5\r\n\r\nslept", b"Length: 4\r\n\r\nslep", "body is 1 byte shorter than the application's (5)"),
    (b"Length: 5\r\n\r\nslept", b"Length: 6\r\n\r\nslept!", "body is 1 byte longer than the application's (5)"),
    (b"slept", b"slebt", "body differs from the application's at byte 3 of 5"),
    (b"slept", b"slept\r\n", "2 bytes after the end of the response: '\\r\\n'"),
    (
        b"Content-Length",
        b"Transfer-Encoding: chunked\r\nContent-Length",
        "Content-Length and Transfer-Encoding in one response (RFC 9112, section 6.2)",
    ),
    (b"Content-Length: 5", b"Date: today", "Date does not have the format of RFC 9110, section 5.6.7: 'today'"),
    (b"\r\n\r\nslept", b"", "the connection ends within the head"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), FAULTS, ids=lambda each: repr(each)[:40])
def test_a_fault_is_named(old: bytes, new: bytes, sentence: str) -> None:
    assert old in WITH_LENGTH
    assert fault(WITH_LENGTH.replace(old, new, 1)) == sentence


CHUNK_FAULTS = [
    (b"2\r\nsl", b"1\r\nsl", "a chunk is longer than its stated size of 1 byte"),
    (b"2\r\nsl", b"0x2\r\nsl", "invalid chunk size: '0x2'"),
    (b"2\r\nsl", b"\r\nsl", "invalid chunk size: ''"),
    (b"sl\r\n", b"sl\n", "a chunk is longer than its stated size of 2 bytes"),
    (b"0\r\n\r\n", b"", "the connection ends after 5 bytes, without a last chunk"),
    (b"0\r\n\r\n", b"0\r\n\r\n0\r\n\r\n", "5 bytes after the end of the response: '0\\r\\n\\r\\n'"),
    (b"0\r\n\r\n", b"0\r\nX Y: 1\r\n\r\n", "not a trailer field: 'X Y: 1'"),
    (b": chunked", b": gzip, chunked", "Transfer-Encoding is 'gzip, chunked', which the client did not accept"),
    (b"HTTP/1.1", b"HTTP/1.0", "Transfer-Encoding in an HTTP/1.0 response (RFC 9112, section 6.1)"),
    (b"ept", b"epT", "body differs from the application's at byte 4 of 5"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), CHUNK_FAULTS, ids=lambda each: repr(each)[:40])
def test_a_fault_of_chunks_is_named(old: bytes, new: bytes, sentence: str) -> None:
    assert old in CHUNKED
    assert fault(CHUNKED.replace(old, new, 1)) == sentence


def test_a_connection_is_what_it_was_announced_to_be() -> None:
    unannounced = "the server closes the connection without announcing it (RFC 9112, section 9.6)"
    assert fault(WITH_LENGTH) == unannounced
    kept = CLOSED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n")
    assert fault(kept, stays=True) == "the server announces that it closes the connection, but keeps it open"
    asked = Expected(head=HEAD, body=b"slept", fields=("Connection: close",))
    ignored = "the server ignores Connection: close and keeps the connection open (RFC 9112, section 9.6)"
    assert fault(WITH_LENGTH, asked, stays=True) == ignored
    assert answered(WITH_LENGTH, asked, stays=False, times=1).status == 200


def test_silence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 0.2)
    open_end = WITH_LENGTH.replace(b"Content-Length: 5\r\n", b"")
    no_end = "the response does not end: no Content-Length, no chunks, and the connection stays open"
    assert fault(open_end, stays=True) == no_end
    short = "body stops 2 bytes short of its Content-Length (5)"
    assert fault(WITH_LENGTH[:-2], stays=True) == short
    assert fault(CHUNKED[:-5], stays=True) == "silence after 5 bytes, without a last chunk"
    with pytest.raises(TimeoutError, match="no response within"):
        answered(b"", times=1)


def test_no_answer_and_a_refusal_are_no_wrong_answers() -> None:
    with pytest.raises(ConnectionResetError, match="without a response"):
        answered(b"", stays=False, times=1)
    with pytest.raises(ConnectionRefusedError, match="status 503"):
        answered(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", stays=False, times=1)


def test_the_beginning_of_an_endless_answer_is_enough() -> None:
    expected = Expected(head=HEAD, body=b"sle", most=3)
    assert answered(CHUNKED[:-5], expected, times=1).body == b"sle"


def test_the_application_says_what_is_expected() -> None:
    files.make()
    pong = checks.of_application("served.shapes:pong")
    assert (pong.status, pong.body, len(pong.head or ())) == (200, b"pong", 15)
    upload = checks.of_application("served.shapes:upload", method="POST", sent=b"12345")
    assert upload.body == b"5"
    assert upload.request().endswith(b"\r\nContent-Length: 5\r\n\r\n12345")
    shapes = [checks.of_application("served.shapes:payload", f"/100k/{shape}") for shape in ("bare", "wrapper", "128")]
    assert {len(shape.body or b"") for shape in shapes} == {102_400}


def test_of_an_unknown_application_the_framing_is_checked() -> None:
    unknown = checks.of_application("shop.wsgi:application", "/report")
    assert (unknown.path, unknown.head, unknown.body) == ("/report", None, None)
    assert answered(WITH_LENGTH, unknown).status == 200
    assert fault(WITH_LENGTH[:-1], unknown) == "body is 1 byte short of its Content-Length (5)"


def test_a_disqualified_cell_has_no_figure_whenever_it_happens() -> None:
    cell = CheckedCell.of(Cell(rounds=1, errors=1, notes=["did not start"]))
    cell.add(1, 5.0, Sample({"x": 5.0}))
    assert cell.values == {1: 5.0}
    cell.add(2, None, Sample(errors=1, note=str(Wrong("status 500 instead of 200"))))
    cell.add(3, 5.0, Sample({"x": 5.0}))
    assert cell.values == {}
    assert (cell.rounds, cell.errors) == (4, 2)
    assert CheckedCell.of(cell) is cell


@pytest.mark.parametrize(
    "fields", [b"Vary: Accept,Cookie\r\n", b"Vary: Accept ,  Cookie\r\n", b"Vary: Accept\r\nVary: Cookie\r\n"]
)
def test_a_list_may_arrive_with_other_spaces_or_in_several_fields(fields: bytes) -> None:
    varied = (*HEAD, ("Vary", "Accept, Cookie"))
    if fields.count(b"Vary") == 1:
        assert answered(WITH_LENGTH.replace(SET, SET + fields), Expected(head=varied, body=b"slept")).status == 200
    joined = (*HEAD, ("Vary", "Accept"), ("Vary", "Cookie"))
    assert answered(WITH_LENGTH.replace(SET, SET + fields), Expected(head=joined, body=b"slept")).status == 200
    other = fields.replace(b"Cookie", b"Origin")
    assert "instead of" in fault(WITH_LENGTH.replace(SET, SET + other), Expected(head=joined, body=b"slept"))
