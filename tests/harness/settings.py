"""Settings of a server that is not started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import effective, from_keywords
from tailrace.system.cgroup import Machine


def server_settings(**changed: Any) -> ServerSettings:
    """The defaults on a machine with two CPUs and without limits, but for these values."""
    return replace(effective(from_keywords({})), **{"machine": Machine(2), **changed})
