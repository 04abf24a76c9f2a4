"""A Django project with admin, sessions and uploads on SQLite under `tailrace django_site.wsgi`."""

import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from frameworks.process import await_that
from harness.server import APPS, Server
from harness.tools import need_module

need_module("django")

PICTURE = bytes(range(256)) * 12_000  # 3 MB: past what Django keeps in memory
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')
SEEDS = "/admin/django_site/seed/"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("django")


@pytest.fixture(scope="module")
def server(data):
    environment = {
        "DJANGO_SITE_DATA": str(data),
        "DJANGO_SETTINGS_MODULE": "django_site.settings",
        "DJANGO_SUPERUSER_PASSWORD": "grains",
    }
    for command in (["migrate"], ["createsuperuser", "--no-input", "--username=ceres", "--email=c@example.org"]):
        subprocess.run(
            [sys.executable, "-m", "django", *command, "--verbosity=0"],
            env={**os.environ, **environment, "PYTHONPATH": str(APPS)},
            cwd=APPS,
            check=True,
            timeout=60,
        )
    with Server("django_site.wsgi", environment=environment) as server:
        yield server


@pytest.fixture
def query(data):
    def run(statement, *arguments):
        connection = sqlite3.connect(data / "db.sqlite3", timeout=20)
        try:
            return connection.execute(statement, arguments).fetchall()
        finally:
            connection.close()

    return run


def submit(client, path, files=None, **fields):
    """Fetches a form and posts it back, as a browser does: with its token and the address that it came from."""
    form = client.get(path)
    assert form.status_code == 200, form.text
    token = TOKEN.search(form.text)[1]
    referer = str(form.url)
    return client.post(path, data={"csrfmiddlewaretoken": token, **fields}, files=files, headers={"Referer": referer})


@pytest.fixture
def admin(client):
    answer = submit(client, "/admin/login/", username="ceres", password="grains", next="/admin/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/admin/")
    assert {"sessionid", "csrftoken"} <= set(client.cookies)
    return client


def test_an_object_is_added_changed_found_and_deleted_through_the_forms(admin, query):
    added = submit(admin, f"{SEEDS}add/", name="Dinkel <ö>", price="3.25", sold="0", _save="Save")
    assert (added.status_code, added.headers["location"]) == (302, SEEDS)
    listed = admin.get(SEEDS)
    assert "was added successfully" in listed.text
    assert "Dinkel &lt;ö&gt;" in listed.text
    ((key,),) = query("select id from django_site_seed where name = ?", "Dinkel <ö>")

    wrong = submit(admin, f"{SEEDS}{key}/change/", name="Dinkel <ö>", price="dear", sold="0", _save="Save")
    assert wrong.status_code == 200
    assert "Enter a number." in wrong.text
    changed = submit(admin, f"{SEEDS}{key}/change/", name="Dinkel", price="4.50", sold="2", _save="Save")
    assert changed.status_code == 302
    assert [
        (float(price), sold) for price, sold in query("select price, sold from django_site_seed where id = ?", key)
    ] == [(4.5, 2)]
    assert "Dinkel" in admin.get(SEEDS, params={"q": "dink"}).text
    assert "0 seeds" in admin.get(SEEDS, params={"q": "barley"}).text
    assert "Changed Name, Price and Sold." in admin.get(f"{SEEDS}{key}/history/").text

    deleted = submit(admin, f"{SEEDS}{key}/delete/", post="yes")
    assert deleted.status_code == 302
    assert query("select * from django_site_seed where id = ?", key) == []


def test_an_uploaded_file_comes_back_as_it_went(admin, data):
    answer = submit(
        admin,
        f"{SEEDS}add/",
        files={"picture": ("poppy.bin", PICTURE, "application/octet-stream")},
        name="Poppy",
        price="9",
        sold="0",
    )
    assert answer.status_code == 302
    assert (data / "media/pictures/poppy.bin").read_bytes() == PICTURE
    got = admin.get("/picture/Poppy")
    assert hashlib.sha256(got.content).digest() == hashlib.sha256(PICTURE).digest()
    assert got.headers["content-length"] == str(len(PICTURE))
    assert got.headers["content-disposition"] == 'attachment; filename="poppy.bin"'
    head = admin.head("/picture/Poppy")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(PICTURE)))


def test_the_admins_static_files(client):
    sheet = client.get("/static/admin/css/base.css")
    assert sheet.status_code == 200
    assert sheet.headers["content-type"] == "text/css"
    assert "DJANGO Admin styles" in sheet.text
    assert len(sheet.content) == int(sheet.headers["content-length"])
    unchanged = client.get("/static/admin/css/base.css", headers={"If-Modified-Since": sheet.headers["last-modified"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert client.get("/static/admin/none.css").status_code == 404


def test_each_client_has_its_session(server, browser, query):
    ((before,),) = query("select count(*) from django_session")
    one, other = browser(server), browser(server)
    assert [one.get("/visits").json()["visits"] for _ in range(3)] == [1, 2, 3]
    assert other.get("/visits").json() == {"visits": 1, "ip": "127.0.0.1"}
    assert one.get("/visits").json()["visits"] == 4
    assert query("select count(*) from django_session") == [(before + 2,)]


def test_writes_from_many_threads_all_count(admin, server, browser, query):
    assert submit(admin, f"{SEEDS}add/", name="Millet", price="1", sold="0").status_code == 302

    def sell(number):
        client = browser(server)
        return [client.post("/sell/Millet", data={"count": number}).status_code for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(sell, range(1, 9))) == [[200] * 10] * 8
    assert query("select sold from django_site_seed where name = 'Millet'") == [(360,)]


def test_a_stream_with_a_query_in_it(admin):
    assert submit(admin, f"{SEEDS}add/", name="Quinoa", price="7.10", sold="0").status_code == 302
    answer = admin.get("/export.csv")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "Quinoa;7.10\n" in answer.text


def test_django_hears_the_end_of_every_request(client, admin):
    for path in ("/visits", "/export.csv", "/static/admin/css/base.css", "/none", "/admin/"):
        client.get(path)
        client.head(path)

    def only_this_one_is_open():
        counted = client.get("/signals").json()
        return counted["started"] == counted["finished"] + 1

    # The end is told after the last byte was sent: a client may be back before.
    await_that(only_this_one_is_open)


def test_static_files_that_nobody_serves_are_explained_once(data, browser):
    environment = {"DJANGO_SITE_DATA": str(data), "DJANGO_SETTINGS_MODULE": "django_site.settings"}
    with Server("django.core.wsgi:get_wsgi_application()", environment=environment) as server:
        client = browser(server)
        assert client.get("/absent").status_code == 404
        assert "collectstatic" not in server.log
        for name in ("base.css", "login.css"):
            assert client.get(f"/static/admin/css/{name}").status_code == 404
        await_that(lambda: "collectstatic" in server.log)
    (line,) = (line for line in server.log.splitlines() if "collectstatic" in line)
    assert "WARNING: GET /static/admin/css/base.css: 404 from Django" in line
    assert "--static /static=./staticfiles" in line
