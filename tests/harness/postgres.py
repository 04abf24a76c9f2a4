"""A PostgreSQL server of the tests' own, from Debian's package."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is missing: apt-get install postgresql")
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    return found[-1].parent


class Postgres:
    """A cluster in a temporary folder, listening on a UNIX socket there; a context that serves while it lasts."""

    def __init__(self) -> None:
        self._programs = _programs()
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-postgres-"))
        # PostgreSQL does not run as root.
        self._as_owner: list[str] = []
        if os.geteuid() == 0:
            owner = pwd.getpwnam("nobody")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as_owner = ["setpriv", "--reuid", "nobody", "--regid", str(owner.pw_gid), "--clear-groups"]

    @property
    def dsn(self) -> str:
        """For `connect` of psycopg 2 and 3."""
        return f"host={self.folder} user=tests dbname=postgres"

    @property
    def url(self) -> str:
        """For `--publish-bus`."""
        return f"postgresql:///postgres?user=tests&host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_owner, str(self._programs / program), *arguments]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{program}: {ended.stdout}{ended.stderr}"

    def __enter__(self) -> Postgres:  # noqa: PYI034 - typing.Self is of Python 3.11
        data = str(self.folder / "data")
        self._run("initdb", "--auth=trust", "--username=tests", "--no-sync", "--pgdata", data)
        self.start()
        return self

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        data = str(self.folder / "data")
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        self._run(
            "pg_ctl", "--pgdata", data, "--wait", "--log", str(self.folder / "log"), "--options", options, "start"
        )

    def stop(self) -> None:
        """Ends it, so that its clients lose their connections."""
        self._run("pg_ctl", "--pgdata", str(self.folder / "data"), "--mode", "immediate", "stop")

    def ask(self, statement: str) -> None:
        """Runs a statement."""
        self._run("psql", "-h", str(self.folder), "-U", "tests", "-d", "postgres", "-c", statement)

    def cut(self) -> None:
        """Cuts the connections of all other clients."""
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    def publish(self, channel: str, message: str) -> None:
        """Publishes a message of another program."""
        self.ask(f"SELECT pg_notify('{channel}', '{message}')")

    def __exit__(self, *exception: object) -> None:
        self.stop()
        shutil.rmtree(self.folder)
