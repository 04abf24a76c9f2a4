"""What an application opens while a mold loads it (`--preload`), and the workers cannot use: threads, connections and
gRPC channels.

Thread: the mold's main one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
from typing import Any, Final, NamedTuple

from tailrace.logs import log

# The state of a channel of `grpc.aio` that is closed (`grpc.ChannelConnectivity.SHUTDOWN`).
_SHUTDOWN: Final = 4


class Opened(NamedTuple):
    """What a process has open. threads: without the current one. sockets: descriptors. channels: those of grpcio."""

    threads: list[threading.Thread]
    sockets: set[int]
    channels: list[Any]

    @classmethod
    def now(cls) -> Opened:
        """What this process has open."""
        threads = [each for each in threading.enumerate() if each is not threading.current_thread()]
        return cls(threads, _sockets(), _channels())

    def warn_of_others_than(self, before: Opened) -> None:
        """Logs what has been opened since, which is the application's.

        What was there before is of a library that was loaded with the master, and has survived one fork already.
        """
        if threads := [each.name for each in self.threads if each not in before.threads]:
            log.logger.warning(
                "--preload: the application has started threads (%s), which do not exist in the workers; start them in "
                "the hook post_fork",
                ", ".join(threads),
            )
        if peers := _peers(self.sockets - before.sockets):
            log.logger.warning(
                "--preload: the application has opened connections (to %s), which all workers would share; drop them "
                "in the hook post_fork, and open others there",
                ", ".join(peers),
            )
        if targets := [_target(each) for each in self.channels if each not in before.channels]:
            log.logger.warning(
                "--preload: the application has opened gRPC channels (to %s), on which calls may fail or hang in the "
                "workers; open them in the hook post_fork",
                ", ".join(targets),
            )


def _sockets() -> set[int]:
    """The descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # The folder itself is open only while it is listed.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def _peers(descriptors: set[int]) -> list[str]:
    """The servers to which these sockets are connected."""
    peers = []
    for descriptor in sorted(descriptors):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            if found.type != socket.SOCK_STREAM:
                # Such as the socket of a log.
                continue
            peer = found.getpeername()
            if found.family == socket.AF_UNIX:
                # A socket pair has no name and is no connection to a server.
                peers += [str(peer)] if peer else []
            else:
                peers.append(f"{peer[0]}:{peer[1]}")
    return peers


def _channels() -> list[Any]:
    """The open channels of grpcio. Each has threads of a C library and, before its first call, no connection."""
    modules = [sys.modules.get(name) for name in ("grpc._channel", "grpc.aio._channel")]
    kinds = [kind for module in modules if isinstance(kind := getattr(module, "Channel", None), type)]
    return [each for each in gc.get_objects() if type(each) in kinds and _is_open(each)] if kinds else []


def _is_open(channel: Any) -> bool:
    """grpcio has no public method for this. A channel counts as open if its version has other private ones."""
    try:
        return bool(channel._channel.check_connectivity_state(False) != _SHUTDOWN)
    except AttributeError:
        return True
    except ValueError:
        return False


def _target(channel: Any) -> str:
    # Not from its C object, which crashes if it is asked after the channel was closed. `grpc.aio` does not keep it.
    return str(getattr(channel, "_target", "an unknown address"))
