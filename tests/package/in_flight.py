"""A request that a test keeps in flight."""

import socket
import threading


class Request(threading.Thread):
    """A request on a thread; `answer` is everything that came back."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address = address
        self.answer = b""

    def run(self):
        with socket.create_connection(self.address, 30) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            try:
                while block := client.recv(65536):
                    self.answer += block
            except ConnectionResetError:
                self.answer += b"<reset>"
