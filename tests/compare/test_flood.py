"""The flood, against a server of this process that answers every third request and breaks off every fifth."""

from __future__ import annotations

import itertools
import socket
import threading

from tailrace.compare import flood


def test_answers_by_status_and_what_was_broken_off() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    numbers = itertools.count(1)

    def serve(connection: socket.socket) -> None:
        with connection:
            while connection.recv(1000):
                number = next(numbers)
                if number % 5 == 0:
                    return
                status = b"200 OK" if number % 3 == 0 else b"503 Service Unavailable"
                connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    found = flood.run(lambda: socket.create_connection(listener.getsockname()), 1000, 0.15)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    acceptor.join(10)
    assert (found.count(200), found.count(503), found.faults) == (40, 80, {"broken": 30})
    slowest = found.percentile(503, 0.99)
    assert slowest is not None
    assert slowest >= (found.percentile(503, 0.5) or 0)
    assert found.percentile(404, 0.5) is None
