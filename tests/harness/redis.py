"""A Redis or Valkey server of the tests' own, from Debian's packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from .addresses import Address, free_address
from .encrypted import authority

_DEADLINE = 30.0


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        # Debian 12 has no Valkey.
        if os.environ.get("CI") == "true" and name == "redis-server":
            pytest.fail("Redis is missing: apt-get install redis-server")
        pytest.skip(f"{name} is missing")
    return found


class Redis:
    """A server on a TCP port, with a password; a context that serves while it lasts.

    is_encrypted: its clients must encrypt. program: `valkey-server` understands the same options.
    """

    password = "s3cret"

    def __init__(self, *, is_encrypted: bool = False, program: str = "redis-server") -> None:
        self._program = _program(program)
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-redis-"))
        self.port = free_address().port
        self.is_encrypted = is_encrypted
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For `--publish-bus`."""
        place = f":{self.password}@127.0.0.1:{self.port}"
        return f"rediss://{place}?ssl_ca_certs={authority().root}" if self.is_encrypted else f"redis://{place}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "requirepass": self.password}
        if self.is_encrypted:
            options |= {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no"}
            files = authority()
            options |= {
                "tls-cert-file": str(files.chain),
                "tls-key-file": str(files.key),
                "tls-ca-cert-file": str(files.root),
            }
        command = [self._program, *(word for name, value in options.items() for word in (f"--{name}", value))]
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL)
        end = time.monotonic() + _DEADLINE
        while not self._answers():
            assert time.monotonic() < end, "Redis does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            return self.ask("PING") == b"+PONG\r\n"
        except OSError:
            return False

    def stop(self) -> None:
        """Ends it, so that its clients lose their connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It does not answer until `go_on`, but its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        """Cuts the connections of all other clients."""
        self.ask("CLIENT KILL TYPE pubsub")
        self.ask("CLIENT KILL TYPE normal")

    def ask(self, command: str) -> bytes:
        """The answer to a command, which is short."""
        with Address("127.0.0.1", self.port, is_encrypted=self.is_encrypted).connect() as client:
            client.sendall(f"AUTH {self.password}\r\n".encode())
            assert client.recv(100) == b"+OK\r\n"
            client.sendall(f"{command}\r\n".encode())
            return client.recv(1000)

    def publish(self, channel: str, message: str) -> None:
        """Publishes a message of another program."""
        self.ask(f'PUBLISH {channel} "{message}"')

    def __enter__(self) -> Redis:  # noqa: PYI034 - typing.Self is of Python 3.11
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        shutil.rmtree(self.folder)
