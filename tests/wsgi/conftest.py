"""Applications inside the test's own process, with and without wsgiref.validate around them.

The validator checks both sides, but it also hides the shape of what the application returned (`len()`, the file
wrapper, a list), so every promise that does not depend on it is tried with it and without.
"""

from __future__ import annotations

from collections.abc import Callable
from wsgiref.validate import validator

import pytest
from harness.addresses import Address
from harness.wire import Client, Response


class Exchange:
    """Asks an application that is served for this one test."""

    def __init__(self, serve: Callable[..., Address], validated: bool) -> None:
        self._serve, self.validated = serve, validated
        self.address: Address | None = None

    def serve(self, app, **options) -> Exchange:
        """Starts the server."""
        self.address = self._serve(validator(app) if self.validated else app, **options)
        return self

    def client(self, deadline: float = 10.0) -> Client:
        """A connection."""
        assert self.address is not None
        return Client(self.address, deadline)

    def ask(
        self, target: str = "/", *fields: str, method: str = "GET", body: bytes = b"", version: str = "1.1"
    ) -> Response:
        """One request on a connection of its own."""
        with self.client() as client:
            return client.ask(wire(target, *fields, method=method, body=body, version=version), method, version)


def wire(target: str = "/", *fields: str, method: str = "GET", body: bytes = b"", version: str = "1.1") -> bytes:
    """The bytes of a request; a body gets its Content-Length unless a field says how it is framed."""
    lines = [f"{method} {target} HTTP/{version}", "Host: test", *fields]
    if body and not any(field.lower().startswith(("content-length", "transfer-encoding")) for field in fields):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.fixture(params=["plain", "validated"])
def exchange(request: pytest.FixtureRequest, serve: Callable[..., Address]) -> Exchange:
    """Served plainly, and under the validator."""
    return Exchange(serve, request.param == "validated")


@pytest.fixture
def plain(serve: Callable[..., Address]) -> Exchange:
    """Served plainly, for applications that break rules on purpose and for shapes that the validator would hide."""
    return Exchange(serve, False)
