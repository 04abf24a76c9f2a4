"""When Python's garbage collector looks at all objects: `--gc`.

What an application has loaded stays until its process ends. Frozen, it is not looked at again, so that a full
collection takes less time. With `--gc idle`, full collections wait until no request runs. They wait for a limited
number of collections of younger objects, after which the interpreter itself begins one.

Thread: the main one.
"""

from __future__ import annotations

import gc
from typing import Final

from tailrace._tailrace import Server

# The number of collections of the middle generation after which a full one is due, as in CPython.
_DUE: Final = 10
# The number after which it is not postponed any longer.
_MAX_THRESHOLD: Final = 100
# Until the next look (seconds): usually, and while a collection is due.
_PAUSE: Final = 1.0
_SHORT_PAUSE: Final = 0.05


def freeze(*, collects: bool) -> None:
    """Exempts all objects that exist from collections. collects: frees those that are not used first."""
    if collects:
        gc.collect()
    gc.freeze()


class IdleCollector:
    """Collects while no request of `server` runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _MAX_THRESHOLD)

    def look(self) -> float:
        """Collects if that is due and nothing runs. Returns when to look again (seconds)."""
        if gc.get_count()[2] < _DUE:
            return _PAUSE
        stats = self._server.stats()
        if stats["running"] or stats["queued"]:
            return _SHORT_PAUSE
        gc.collect()
        return _PAUSE
