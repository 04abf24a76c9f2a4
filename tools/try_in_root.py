"""Types the commands of a page of the manual in a new Debian system, as a reader would, and prints what each one did.

    sudo python tools/try_in_root.py docs/tutorial.md --wheels dist

The system boots with systemd as process 1. It has the network of this machine, so ports 80 and 8000 must be free. `pip
install tailrace` takes the wheel from --wheels. Needs root, mmdebstrap and systemd-container. Files are saved where
the page says, and questions are answered. Exit status: 1 if a command fails.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.pages import Block, blocks

PACKAGES: Final = "systemd,systemd-sysv,dbus,libpam-systemd,sudo,ca-certificates"
USER: Final = """
echo "PS1='[\\$?]\\$ '" | tee -a /root/.bashrc >>/etc/skel/.bashrc
useradd --create-home --shell /bin/bash --groups sudo reader
echo 'reader ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/reader
"""
PROMPT: Final = re.compile(rb"\[(\d+)\]\$ $")
DEADLINE: Final = 600
READY: Final = re.compile(rb"ready in .*")
# What apt and Django ask.
ANSWERS: Final = {
    rb"\[Y/n\] $": b"y",
    rb"Username.*: $": b"owner",
    rb"mail.*: $": b"",
    rb"Password.*: $": b"long words 4",
}


def boot(root: Path) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Starts the system. Returns its process here, and the beginning of a command that runs in it."""
    keep = [] if Path("/run/systemd/system").exists() else ["--keep-unit"]
    command = ["systemd-nspawn", "--quiet", "-D", str(root), "--register=no", *keep, "-b", "--console=read-only"]
    system = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    while system.poll() is None:
        found = subprocess.run(["pgrep", "-x", "systemd", "-P", str(system.pid)], capture_output=True, text=True)
        inside = f"nsenter -a -t {found.stdout.strip()} -- env -i PATH=/usr/sbin:/usr/bin TERM=dumb".split()
        state = subprocess.run([*inside, "systemctl", "is-system-running", "--wait"], capture_output=True, text=True)
        if state.stdout.strip() in ("running", "degraded"):
            return system, inside
        time.sleep(0.1)
    raise SystemExit("the system has not started")


class Terminal:
    """A terminal in the system, where the reader has logged in."""

    def __init__(self, inside: list[str]) -> None:
        child, self._end = pty.fork()
        if child == 0:
            os.execvp(inside[0], [*inside, "login", "-f", "reader"])
        self.until(PROMPT)
        self.do("stty -echo cols 120")

    def until(self, *patterns: re.Pattern[bytes]) -> tuple[str, re.Match[bytes]]:
        """What is printed before one of the patterns; answers questions."""
        printed = b""
        while True:
            if not select.select([self._end], [], [], DEADLINE)[0]:
                raise SystemExit(f"no prompt within {DEADLINE} s after\n{printed.decode(errors='replace')}")
            printed += os.read(self._end, 65536)
            for found in filter(None, (pattern.search(printed) for pattern in patterns)):
                return printed[: found.start()].decode(errors="replace").replace("\r", ""), found
            for question, answer in ANSWERS.items():
                if re.search(question, printed):
                    os.write(self._end, answer + b"\n")
                    printed += b"\n"

    def do(self, line: str) -> int | None:
        """Types a command; its exit status, or None if it is a server that now serves."""
        begun = time.monotonic()
        os.write(self._end, line.encode() + b"\n")
        printed, found = self.until(PROMPT, *[READY] * (Path(line.split()[0]).name == "tailrace"))
        status = int(found[1]) if found.re is PROMPT else None
        print(f"$ {line}    # {time.monotonic() - begun:.1f} s, status {status}\n{printed.strip()}", flush=True)
        return status


def follow(page: list[Block], root: Path, inside: list[str]) -> bool:
    """Types the commands, and saves the files; False if a command fails."""
    first = Terminal(inside)
    serving, good = None, True
    directory = root / "home/reader"
    for block in page:
        if block.title:
            path = directory / block.title if block.title[0] != "/" else root / block.title[1:]
            with path.open("a" if path.name == "settings.py" else "w") as file:
                file.write(block.text)
        if block.language != "console":
            continue
        time.sleep(1)  # A reader is not faster, and `systemctl reload` does not wait for nginx.
        terminal = Terminal(inside) if serving else first
        for command in block.commands:
            if command.line.startswith("cd "):
                directory = root / command.line.removeprefix("cd /")
            status = terminal.do(command.line)
            good = good and not status
        if serving:
            serving.do("\x03")
        serving = terminal if status is None else None
    return good


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Types the commands of a page in a new Debian system.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--wheels", type=Path, required=True, help="directory with a wheel of Tailrace for its Python")
    parser.add_argument("--before", type=Path, metavar="SCRIPT", help="sets up, as root, what the page supposes")
    parser.add_argument("--copy", action="append", default=[], metavar="FILE", help="a file of this machine to copy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="root-") as name:
        good = try_page(options, Path(name))
    print("every command succeeded" if good else "a command FAILED")
    return 0 if good else 1


def try_page(options: argparse.Namespace, root: Path) -> bool:
    """Makes the system in `root`, and follows the page in it."""
    subprocess.run(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)], check=True)
    shutil.copytree(options.wheels, root / "opt/wheels")
    (root / "etc/xdg/pip").mkdir(parents=True)
    (root / "etc/xdg/pip/pip.conf").write_text("[global]\nfind-links = /opt/wheels\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {(root / 'etc/hostname').read_text()}")
    for each in options.copy:
        shutil.copy(each, root / each.lstrip("/"))
    system, inside = boot(root)
    try:
        for script in (USER, options.before.read_text() if options.before else "true"):
            subprocess.run([*inside, "sh", "-ec", script], check=True)
        return follow(blocks(options.page.resolve()), root, inside)
    finally:
        system.send_signal(signal.SIGTERM)
        system.wait()


if __name__ == "__main__":
    sys.exit(main())
