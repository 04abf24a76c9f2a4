"""Settings of a server that is not started."""

from dataclasses import replace
from typing import Any

from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import from_keywords
from tailrace.system.cgroup import Machine


def server_settings(**changed: Any) -> ServerSettings:
    """The defaults on a machine with two CPUs and without limits, but for these values."""
    return replace(from_keywords({}).effective, **{"machine": Machine(2), **changed})
