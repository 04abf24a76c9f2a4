"""A server of this process, for the clients of the comparison."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Its address. `serve` runs in a thread for each connection, which is closed afterwards."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=run, args=(connection,), daemon=True).start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(10)
