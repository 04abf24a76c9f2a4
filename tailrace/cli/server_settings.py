"""The settings of one server: the value of each option, typed and frozen, and what follows from several of them.

`settings.effective` builds them, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tailrace.cli.options import OPTIONS, OptionValues
from tailrace.cli.sampler import sampling
from tailrace.cli.static_values import FINGERPRINTED
from tailrace.system.cgroup import Machine

# The default of --client-memory. Where a cgroup limits the memory, all workers together have at most this share of it.
CLIENT_MEMORY: Final = 512 << 20
CLIENT_SHARE: Final = 1 / 4
# A worker keeps as many connections as its limit of open files allows, and at most this number.
MAX_CONNECTIONS: Final = 100_000
# With --max-rss auto, this share of a cgroup's memory may be in use. The rest is for what grows between two checks, and
# for memory that counts and cannot be seen here, such as that of a file system or of the network.
_MEMORY_SHARE: Final = 0.9
# With less, large responses and bodies would always be in files.
_MIN_CLIENT_MEMORY: Final = 16 << 20
# What a browser need not ask for again: another content has another name.
FINGERPRINTED_FOREVER: Final = "public, max-age=31536000, immutable"


# Making the methods of a dataclass for a hundred fields takes milliseconds. Nothing compares or prints the settings.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerSettings(OptionValues):
    """Option values, and the machine that some defaults depend on."""

    machine: Machine

    def __init__(self, *, machine: Machine, **values: Any) -> None:
        """values: that of each option, by its name."""
        vars(self).update(values, machine=machine)

    @property
    def worker_count(self) -> int:
        """The number of workers; `auto` is one for each CPU that may be used."""
        return self.machine.cpus if self.workers == "auto" else int(self.workers)

    @property
    def memory_in_use_limit(self) -> int | None:
        """Bytes that may be in use in the cgroup with `--max-rss auto`; None: any number."""
        if self.max_rss != "auto" or self.machine.memory is None:
            return None
        return int(self.machine.memory * _MEMORY_SHARE)

    @property
    def concurrency(self) -> int:
        """The number of requests that a worker runs at once: threads, or greenlets."""
        return self.max_greenlets if self.gevent else self.threads

    @property
    def memory(self) -> int:
        """Bytes that a worker holds for its clients in all."""
        if self.client_memory is not None:
            return self.client_memory
        if self.machine.memory is None:
            return CLIENT_MEMORY
        share = int(self.machine.memory * CLIENT_SHARE) // self.worker_count
        return max(_MIN_CLIENT_MEMORY, min(CLIENT_MEMORY, share))

    @property
    def static_mounts(self) -> list[tuple[str, str, bool]]:
        """Path of the URLs, folder, and whether the application gets what the folder does not have."""
        mounts = [(prefix, folder, False) for prefix, folder in self.static]
        return [*mounts, ("", self.overlay, True)] if self.overlay is not None else mounts

    def core(self, worker: int = 1, connections: int = MAX_CONNECTIONS) -> dict[str, object]:
        """The settings of the Rust core. worker: its number, from 1. connections: how many it may keep."""
        return {option.core: getattr(self, option.name) for option in OPTIONS if option.core is not None} | {
            "worker": worker,
            "max_connections": connections,
            "sampling": None if self.otlp_endpoint is None else sampling()[0],
            "executor": "greenlets" if self.gevent else "inline" if self.debug else "threads",
            "threads": self.concurrency,
            "client_memory": self.memory,
            "static_mounts": self.static_mounts,
            "static_named": list(self.sendfile_root),
            "static_not_found": dict(self.static_fallback).get("404"),
            "static_fallback": dict(self.static_fallback).get("200"),
            "static_cache": [rule for rule in self.static_cache if rule[0] != FINGERPRINTED],
            "static_fingerprinted": dict(self.static_cache).get(FINGERPRINTED, FINGERPRINTED_FOREVER),
            "multithread": self.gevent or (self.threads > 1 and not self.debug),
            "multiprocess": self.worker_count > 1 and not self.debug,
        }
