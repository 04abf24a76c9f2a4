"""Runs commands at the same time, and shows what each of them said, whole, once it has ended.

python tools/together.py 'make lint-rust test-rust' 'make build lint-python'

All go on to their ends, also when one fails. Exit status: 0 when all of them have succeeded, 1 otherwise.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed


def run(command: str) -> tuple[int, bytes]:
    """The exit status of a command, and what it said: a last line tells how it ended, after how many seconds."""
    begun = time.monotonic()
    # Not a pipe, which a process that the command has left behind would keep open.
    with tempfile.TemporaryFile() as said:
        try:
            status = subprocess.run(
                shlex.split(command), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, check=False
            ).returncode
        except OSError as error:
            said.write(f"{error}\n".encode())
            status = 127
        said.seek(0)
        last = f"== {command}: status {status} after {time.monotonic() - begun:.0f} s\n"
        return status, said.read() + last.encode()


def main(commands: list[str]) -> int:
    """Runs them; the exit status."""
    status = 0
    with ThreadPoolExecutor(len(commands)) as threads:
        for ended in as_completed([threads.submit(run, command) for command in commands]):
            failed, said = ended.result()
            sys.stdout.buffer.write(said)
            sys.stdout.buffer.flush()
            status |= failed != 0
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
