"""Libraries of applications on gevent: a database driver in C with a wait callback, and HTTP clients to the same
server."""

import json
from contextlib import ExitStack

import pytest
from harness.greenlets import on_greenlets
from harness.postgres import Postgres
from harness.tools import need_module
from server.probes import asking, eventually, request

QUERIES = 30


@pytest.fixture
def database():
    """A connection that holds the lock for which each query of the application waits, and the number of queries that
    wait."""
    psycopg2 = need_module("psycopg2")
    need_module("psycogreen.gevent")
    with Postgres() as server:
        connection = psycopg2.connect(server.dsn)
        cursor = connection.cursor()
        cursor.execute("SELECT pg_advisory_lock(1)")

        def waiting():
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return cursor.fetchone()[0]

        yield server.dsn, connection, waiting
        connection.close()


@pytest.fixture
def hooks(tmp_path):
    """psycogreen where its documentation puts it."""
    (tmp_path / "hooks.py").write_text(
        "def post_fork(worker):\n    from psycogreen.gevent import patch_psycopg\n    patch_psycopg()\n"
    )
    return tmp_path / "hooks.py"


def test_a_database_driver_in_c_waits_on_the_hub(hooks, database):
    # psycopg2 waits in libpq, and only its wait callback knows gevent. Fails when a request's greenlet is not one that
    # gevent can switch (a Rust frame that must not be left, a missing hub), or when the patch comes too late.
    dsn, connection, waiting = database
    with on_greenlets("srv_database:app", hooks=hooks, environment={"DSN": dsn}) as server, ExitStack() as stack:
        clients = [stack.enter_context(asking(server, f"/?text=answer-{number}")) for number in range(QUERIES)]
        pongs = stack.enter_context(server.client())
        for _ in range(50):
            assert pongs.ask(request("/pong")).body == b"pong"
        eventually(lambda: waiting() == QUERIES, "all queries wait at the same time")
        connection.close()
        for number, client in enumerate(clients):
            assert client.response().body == f"answer-{number}".encode()
        assert "hub has been blocked" not in server.log


def test_the_driver_can_be_given_up_by_a_timeout(hooks, database):
    options = {"hooks": hooks, "environment": {"DSN": database[0]}, "request_timeout": 0.5}
    with on_greenlets("srv_database:app", **options) as server:
        with asking(server, "/?text=alone") as client:
            assert client.response().status == 504
        assert server.logged("past its deadline")
        assert server.logged("gevent_wait_callback")
        assert server.get("/pong").body == b"pong"


def test_requests_inside_the_application_asks_its_own_server():
    # Fails when a request blocks the hub while it waits for another one.
    need_module("requests")
    with on_greenlets() as server, ExitStack() as stack:
        clients = [
            stack.enter_context(asking(server, f"/asks_itself?path=sleep&params=seconds%3D0.05%26key%3D{number}"))
            for number in range(40)
        ]
        for number, client in enumerate(clients):
            status, body = json.loads(client.response().body)
            assert (status, json.loads(body)) == (200, {"key": str(number)})
