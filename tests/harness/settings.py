"""Settings of a server that is not started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import effective, from_keywords


def server_settings(**changed: Any) -> ServerSettings:
    """The defaults, but for these values."""
    return replace(effective(from_keywords({})), **changed)
