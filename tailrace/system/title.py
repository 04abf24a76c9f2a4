"""What `ps` and `top` show of a process and its threads."""

from __future__ import annotations

import contextlib
from typing import Final

_NAME_LIMIT: Final = 15  # characters of a thread's name, proc(5)


def set_title(role: str, application: str) -> None:
    """Sets the title of the process; call it on the main thread.

    With setproctitle (the extra `title`) `ps` shows `tailrace: master [app:app]`. Without it only the name of the main
    thread changes, which `ps -o comm` and `top` show: `tailrace-master`, `tailrace-w1`.
    """
    try:
        from setproctitle import setproctitle
    except ImportError:
        name_thread(f"tailrace-{role}".replace("worker ", "w"))
    else:
        setproctitle(f"tailrace: {role} [{application}]")


def name_thread(name: str) -> None:
    """Names the calling thread, for tools. Names are ASCII, and cut off after 15 characters."""
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w") as file:
        file.write(name[:_NAME_LIMIT])
