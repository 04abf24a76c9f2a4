"""The applications of docs/compatibility.md, and what a client does with each: a table, and one driver for each row.

    python tools/compatibility_drivers.py NAME URL      # by tools/compatibility.py, in the application's environment

A driver yields a sentence fragment for each operation whose outcome it has checked, and raises at the first that fails.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

LARGE: Final = bytes(range(256)) * 20_000  # 5 MB: no framework keeps it in memory
HIDDEN: Final = re.compile(r"<input[^>]*type=\"hidden\"[^>]*>")
PASSWORD: Final = ("ceres", "grains of gold")
Driver = Callable[[str], Iterator[str]]


@dataclass(frozen=True)
class Application:
    """packages: for pip, those of the client included. target: what `tailrace` is told. files and setup: what is in its
    directory, and commands that run there. client: who drives it. why_one: the reason for one worker, if two are wrong.
    """

    name: str
    packages: tuple[str, ...]
    target: str
    driver: Driver
    client: str = "HTTPX"
    files: dict[str, str] = field(default_factory=dict)
    setup: tuple[tuple[str, ...], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    why_one: str = ""

    @property
    def key(self) -> str:
        """Its name for the command line and for a directory."""
        return self.name.lower().replace(" ", "-")


class Site(httpx.Client):
    """A browser without scripts: it keeps cookies, follows redirects and returns the hidden fields of forms."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(base_url=url, follow_redirects=True, timeout=60, **options)

    def page(self, path: str, **options: Any) -> str:
        """The text of a page that must exist."""
        return self.get(path, **options).raise_for_status().text

    def submit(self, path: str, files: Any = None, to: str = "", **fields: str) -> httpx.Response:
        """Posts the form of the page, by default to the page itself."""
        hidden = {}
        for tag in HIDDEN.findall(self.page(path)):
            attributes = dict(re.findall(r'(\w+)="([^"]*)"', tag))
            hidden[attributes.get("name", "")] = attributes.get("value", "")
        answer = self.post(to or path, data={**hidden, **fields}, files=files, headers={"Referer": str(self.base_url)})
        return answer.raise_for_status()

    def log_in(self, path: str) -> None:
        """Logs in at Django's form."""
        answer = self.submit(path, username=PASSWORD[0], password=PASSWORD[1])
        expect(self.cookies.get("sessionid") is not None and 'name="password"' not in answer.text, "login")


def expect(condition: bool, what: object) -> None:
    """Raises if the outcome of an operation is not what it must be."""
    if not condition:
        raise AssertionError(what)


def ran(*command: str, directory: str = ".") -> str:
    """What a command prints; raises with it if the command fails."""
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    expect(done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}")
    return done.stdout


def digest(data: bytes) -> str:
    """For comparisons whose failure is readable."""
    return hashlib.sha256(data).hexdigest()


def flask(url: str) -> Iterator[str]:
    with Site(url) as site:
        expect(site.post("/login", data={"name": "ä"}).json()["visits"] == 1, "login")
        expect(site.get("/me").json()["visits"] == 2, "session")
        yield "session"
        files = site.post("/upload", files={"file": ("a.bin", LARGE)}, data={"note": "ä"}).json()
        expect(files["files"][0]["sha256"] == digest(LARGE) and files["form"] == {"note": "ä"}, files)
        yield "upload of 5 MB"
        chunked = site.post("/raw", content=iter([LARGE[:70_000], LARGE[70_000:]])).json()
        expect(chunked["length"] == len(LARGE), chunked)
        yield "chunked request"
        expect(site.get("/seeds/a/b", params={"tag": ["1", "2"]}).json()["tags"] == ["1", "2"], "query")
        yield "URL and query"
        expect(site.get("/fails").status_code == 500, "error page")
        yield "error page"


def django(url: str) -> Iterator[str]:
    with Site(url) as site:
        site.log_in("/admin/login/")
        yield "admin login"
        expect("--primary" in site.page("/static/admin/css/base.css"), "static")
        yield "static file"
        seeds = "/admin/django_site/seed/"
        site.submit(f"{seeds}add/", {"picture": ("a.bin", LARGE)}, name="Poppy", price="1.50", sold="0")
        expect("Poppy" in site.page(seeds), "list")
        yield "upload of 5 MB in the admin"
        expect(site.get("/picture/Poppy").content == LARGE, "FileResponse")
        yield "FileResponse"
        expect(site.page("/export.csv") == "Poppy;1.50\n", "stream")
        yield "StreamingHttpResponse"
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: site.post("/sell/Poppy", data={"count": "1"}).raise_for_status(), range(200)))
        expect(site.post("/sell/Poppy", data={"count": "0"}).json()["sold"] == 200, "concurrent writes")
        yield "200 concurrent writes"
        site.submit(f"{seeds}1/delete/", post="yes")
        expect("Poppy" not in site.page(seeds), "delete")
        yield "delete in the admin"


def rest_framework(url: str) -> Iterator[str]:
    with Site(url, auth=PASSWORD) as site:
        expect(site.get("/users/").json()["count"] == 1, "list")
        yield "list"
        made = site.post("/users/", json={"username": "flora"})
        expect(made.status_code == 201 and made.json()["url"].startswith(url), made.text)
        yield "create"
        flora = made.json()["url"]
        expect(site.patch(flora, json={"email": "f@example.org"}).json()["email"] == "f@example.org", "patch")
        expect(site.put(flora, data={"username": "flora2"}).json()["username"] == "flora2", "put")
        yield "PATCH as JSON and PUT as a form"
        expect("<html" in site.page(flora, headers={"Accept": "text/html"}), "browsable API")
        expect(len(site.page("/static/rest_framework/css/bootstrap.min.css")) > 10_000, "static")
        yield "browsable API with static files"
        expect(site.post("/users/", json={}).status_code == 400, "validation")
        expect(site.get("/users/", auth=("flora", "wrong")).status_code in (401, 403), "authentication")
        yield "validation and authentication errors"
        expect("POST" in site.options("/users/").json()["actions"], "options")
        answer = site.delete(flora)
        expect((answer.status_code, answer.content, site.get(flora).status_code) == (204, b"", 404), "delete")
        yield "OPTIONS and DELETE"


def wagtail(url: str) -> Iterator[str]:
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]

    with Site(url) as site:
        site.log_in("/admin/login/")
        yield "admin login"
        picture = io.BytesIO()
        Image.effect_noise((1200, 1200), 80).save(picture, "PNG")
        site.submit("/admin/images/add/", {"file": ("a.png", picture.getvalue(), "image/png")}, title="Poppy")
        found = re.search(r'src="(/media/images/[^"]+)"', site.page("/admin/images/"))
        expect(found is not None and site.get(found[1]).content[:4] in (b"\x89PNG", b"RIFF"), "rendition")
        yield "image upload and rendition"
        site.submit("/admin/pages/add/home/homepage/3/", title="About ä", slug="about", **{"action-publish": "x"})
        expect("About ä" in site.page("/about/"), "page")
        yield "publish a page and read it"
        expect("About" in site.page("/search/", params={"query": "About"}), "search")
        yield "search"
        site.submit("/admin/documents/add/", {"file": ("a.txt", LARGE, "text/plain")}, title="Seeds")
        expect(site.get("/documents/1/a.txt").content == LARGE, "document")
        yield "document upload and download of 5 MB"


def pyramid(url: str) -> Iterator[str]:
    with Site(url) as site:
        answer = site.get("/", params={"q": "ä"})
        expect(answer.json()["query"] == {"q": "ä"} and answer.headers["X-Tween"] == answer.json()["title"], "view")
        yield "JSON renderer and tween"
        expect(site.post("/upload", files={"file": ("a", LARGE)}).json()["sha256"] == digest(LARGE), "upload")
        yield "upload of 5 MB"
        expect(site.page("/rows") == "".join(f"{number}\n" for number in range(3000)), "iterator")
        yield "app_iter"
        static = site.get("/static/seeds.css")
        unchanged = {"If-Modified-Since": static.headers["Last-Modified"]}
        expect(site.get("/static/seeds.css", headers=unchanged).status_code == 304, "static view")
        yield "static view with 304"
        expect("def main" in site.page("/source") and site.get("/nothing").status_code == 404, "FileResponse")
        yield "FileResponse"


def small_framework(url: str) -> Iterator[str]:
    with Site(url) as site:
        # Falcon's limit for one part is 1 MiB.
        part = LARGE[:1_000_000]
        answer = site.post("/form", data={"note": "ä"}, files={"file": ("a.bin", part)}).json()
        expect(answer == {"note": "ä", "name": "a.bin", "sha256": digest(part)}, answer)
        yield "form with an upload of 1 MB"
        for body in (LARGE, iter([LARGE[:70_000], LARGE[70_000:]])):
            expect(site.post("/digest", content=body).json()["sha256"] == digest(LARGE), "body")
        yield "plain and chunked body"
        expect(site.page("/rows").count("\n") == 501, "generator")
        yield "generator"
        expect("def " in site.page("/source") and site.delete("/source").status_code == 204, "file")
        yield "file, and a response without a body"
        expect(site.get("/fails").status_code == 500, "error page")
        yield "error page"


def cherrypy(url: str) -> Iterator[str]:
    with Site(url) as site:
        expect(site.get("/", params={"name": "ä"}).text == "Hello ä", "handler")
        yield "page handler"
        expect(site.post("/upload", files={"file": ("a.bin", LARGE)}).text == digest(LARGE), "upload")
        yield "upload of 5 MB"
        expect([site.page("/visits") for _ in range(5)] == ["1", "2", "3", "4", "5"], "file session")
        yield "session in files"
        part = site.get("/static/app.py", headers={"Range": "bytes=0-9"})
        expect((part.status_code, len(part.content)) == (206, 10), "staticdir")
        yield "staticdir with a range"
        expect(site.page("/rows").count("\n") == 3000, "stream")
        yield "streamed response"
        expect(site.get("/nothing").status_code == 404, "error page")
        yield "error page"


def zope(url: str) -> Iterator[str]:
    with Site(url, auth=PASSWORD) as site:
        expect("manage_workspace" in site.page("/manage_main"), "ZMI")
        expect(httpx.get(f"{url}/manage_main").status_code == 401, "authentication")
        yield "management interface with basic authentication"
        add = site.post(
            "/manage_addProduct/OFSP/manage_addFile", files={"file": ("a.bin", LARGE)}, data={"id": "seeds"}
        )
        expect(add.raise_for_status().is_success and site.get("/seeds").content == LARGE, "File")
        yield "upload and download of a 5 MB File"
        part = site.get("/seeds", headers={"Range": "bytes=100-199"})
        expect((part.status_code, part.content) == (206, LARGE[100:200]), "range")
        yield "range"
        product = "/manage_addProduct/PageTemplates/manage_addPageTemplate"
        text = '<p tal:repeat="id here/objectIds" tal:content="id"/>'
        site.post(product, data={"id": "ids", "title": "", "text": text, "submit": "Add"}).raise_for_status()
        expect("<p>seeds</p>" in site.page("/ids"), "page template")
        yield "page template"
        site.post("/manage_delObjects", data={"ids:list": "ids"}).raise_for_status()
        expect(site.get("/ids").status_code == 404, "delete")
        yield "delete"
        binary = {"Content-Type": "application/octet-stream"}
        answer = site.put("/seeds", content=LARGE[:99], headers=binary)
        expect(answer.is_success and site.get("/seeds").content == LARGE[:99], "PUT, which seeks in wsgi.input")
        yield "PUT"


def litmus(url: str) -> Iterator[str]:
    """Its warnings do not fail it. Yields each test that passes."""
    said = subprocess.run(["litmus", "-k", url, *PASSWORD], capture_output=True, text=True, check=False).stdout
    suites = re.findall(
        r"^-> running `(\w+)'|^ ?\d+\. (\w+)\.+ (pass|FAIL|SKIPPED|WARNING)", said.replace("\r", "\n"), re.M
    )
    failed, suite = [], ""
    for begun, test, outcome in suites:
        suite = begun or suite
        if outcome == "pass":
            yield f"{suite}: {test}"
        elif outcome in ("FAIL", "SKIPPED"):
            failed.append(f"{suite}: {test}")
    expect(bool(suites) and not failed, ", ".join(failed) or said[-1000:])


def radicale(url: str) -> Iterator[str]:
    from datetime import datetime

    import caldav  # type: ignore[import-not-found, unused-ignore]

    with caldav.DAVClient(url, username=PASSWORD[0], password=PASSWORD[1]) as client:
        calendar = client.principal().make_calendar(name="Sowing")
        expect([each.get_display_name() for each in client.principal().calendars()] == ["Sowing"], "calendars")
        yield "make a calendar and discover it"
        for day in range(1, 21):
            calendar.save_event(
                dtstart=datetime(2030, 5, day, 8), dtend=datetime(2030, 5, day, 9), summary=f"Bed {day} ä"
            )
        expect(len(calendar.events()) == 20, "events")
        yield "20 events"
        found = calendar.search(start=datetime(2030, 5, 4), end=datetime(2030, 5, 7), event=True)
        expect(len(found) == 3, found)
        yield "search by time"
        event = found[0]
        event.data = event.data.replace("Bed", "Field")
        event.save()
        expect(sum("Field" in each.data for each in calendar.events()) == 1, "change")
        event.delete()
        expect(len(calendar.events()) == 19, "delete")
        yield "change and delete an event"
        calendar.delete()
        expect(client.principal().calendars() == [], "delete")
        yield "delete the calendar"


def hgweb(url: str) -> Iterator[str]:
    ran("hg", "clone", url, "first")
    yield "hg clone"
    for number in range(3):
        Path("first", f"{number}.bin").write_bytes(LARGE[number:])
        ran("hg", "commit", "--addremove", "--user", "ceres", "--message", f"Sow {number} ä", directory="first")
    ran("hg", "push", directory="first")
    yield "hg push"
    ran("hg", "clone", "--pull", url, "second")
    expect(Path("second/2.bin").read_bytes() == LARGE[2:], "clone")
    yield "hg clone of what was pushed"
    ran("hg", "bookmark", "harvest", directory="second")
    Path("second/0.bin").unlink()
    ran("hg", "commit", "--addremove", "--user", "ceres", "--message", "Harvest", directory="second")
    ran("hg", "push", "--bookmark", "harvest", directory="second")
    expect("harvest" in ran("hg", "incoming", "--bookmarks", directory="first"), "bookmark")
    yield "hg push of a bookmark"
    with Site(url) as site:
        expect("Sow 2 ä" in site.page("/log") and site.get("/raw-file/tip/1.bin").content == LARGE[1:], "pages")
        expect(site.get("/archive/tip.zip").content.startswith(b"PK"), "archive")
    yield "pages, raw file and archive"


def git(url: str) -> Iterator[str]:
    from random import Random

    as_ceres = ("-c", "user.name=ceres", "-c", "user.email=ceres@example.org")
    ran("git", "clone", f"{url}/seeds.git", "first")
    Path("first/large.bin").write_bytes(Random(1).randbytes(20_000_000))
    Path("first/seeds").mkdir()
    for number in range(200):
        Path(f"first/seeds/{number}").write_text(f"{number}\n")
        ran("git", "add", ".", directory="first")
        ran("git", *as_ceres, "commit", "--quiet", "-m", f"Sow {number} ä", directory="first")
    traced = ran("git", "push", "origin", "HEAD:refs/heads/main", directory="first")
    expect("Transfer-Encoding: chunked" in traced, "chunked")
    yield "git push of 20 MB, chunked"
    ran("git", "clone", "--branch", "main", f"{url}/seeds.git", "second")
    tips = {ran("git", "rev-parse", "HEAD", directory=each) for each in ("first", "second")}
    expect(len(tips) == 1, "clone")
    ran("git", "fsck", directory="second")
    yield "git clone and fsck"
    ran("git", *as_ceres, "commit", "--allow-empty", "-m", "Harvest", directory="second")
    ran("git", "tag", "v1", directory="second")
    ran("git", "push", "origin", "HEAD:refs/heads/main", "v1", directory="second")
    yield "git push of a branch and a tag"
    ran("git", "fetch", "--tags", "origin", "main", directory="first")
    same = ran("git", "rev-parse", "FETCH_HEAD", directory="first") == ran("git", "rev-parse", "v1", directory="second")
    expect(same, "fetch")
    yield "git fetch"
    ran("git", "push", "origin", ":refs/tags/v1", directory="first")
    expect("refs/tags/v1" not in ran("git", "ls-remote", "origin", directory="first"), "delete")
    yield "delete a tag"


def moto(url: str) -> Iterator[str]:
    import boto3  # type: ignore[import-not-found, import-untyped, unused-ignore]

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1", "endpoint_url": url}
    s3, dynamodb, sqs = (boto3.client(name, **keys) for name in ("s3", "dynamodb", "sqs"))
    s3.create_bucket(Bucket="seeds")
    s3.put_object(Bucket="seeds", Key="a/ä b", Body=LARGE, Metadata={"note": "x"})
    found = s3.get_object(Bucket="seeds", Key="a/ä b")
    expect((found["Body"].read() == LARGE, found["Metadata"]) == (True, {"note": "x"}), "object")
    yield "S3: an object of 5 MB with metadata"
    s3.upload_fileobj(io.BytesIO(LARGE * 4), "seeds", "large")
    part = s3.get_object(Bucket="seeds", Key="large", Range="bytes=100-199")["Body"].read()
    expect(
        part == LARGE[100:200] and s3.head_object(Bucket="seeds", Key="large")["ContentLength"] == 4 * len(LARGE), ""
    )
    yield "S3: multipart upload of 20 MB, range, HEAD"
    signed = s3.generate_presigned_url("get_object", Params={"Bucket": "seeds", "Key": "a/ä b"})
    expect(httpx.get(signed).content == LARGE, "presigned URL")
    s3.delete_objects(Bucket="seeds", Delete={"Objects": [{"Key": "a/ä b"}]})
    expect([each["Key"] for each in s3.list_objects_v2(Bucket="seeds")["Contents"]] == ["large"], "list")
    yield "S3: presigned URL, delete, list"
    dynamodb.create_table(
        TableName="seeds",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with ThreadPoolExecutor(8) as pool:
        items = ({"id": {"S": f"{number}"}, "sold": {"N": "1"}} for number in range(100))
        list(pool.map(lambda item: dynamodb.put_item(TableName="seeds", Item=item), items))
    expect(dynamodb.scan(TableName="seeds")["Count"] == 100, "scan")
    yield "DynamoDB: table, 100 concurrent items, scan"
    queue = sqs.create_queue(QueueName="seeds")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="sow ä")
    message = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=2)["Messages"][0]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    expect(
        message["Body"] == "sow ä" and "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1), "SQS"
    )
    yield "SQS: send, receive, delete, long poll"


OF_THE_TESTS: Final = "tests/apps/"
SUPERUSER: Final = (
    ("django-admin", "migrate", "--verbosity=0"),
    ("django-admin", "createsuperuser", "--no-input", f"--username={PASSWORD[0]}", "--email=c@example.org"),
)
IN_MEMORY: Final = "its data is in the memory of one process"

CHERRYPY: Final = """\
import hashlib
import cherrypy
from cherrypy.lib.sessions import FileSession

class Root:
    @cherrypy.expose
    def index(self, name="World"):
        return f"Hello {name}"
    @cherrypy.expose
    def upload(self, file):
        return hashlib.sha256(file.file.read()).hexdigest()
    @cherrypy.expose
    def visits(self):
        cherrypy.session["visits"] = cherrypy.session.get("visits", 0) + 1
        return str(cherrypy.session["visits"])
    @cherrypy.expose
    @cherrypy.config(**{"response.stream": True})
    def rows(self):
        return (f"{number}\\n" for number in range(3000))

here = __file__.rpartition("/")[0]
sessions = {"sessions.on": True, "sessions.storage_class": FileSession, "sessions.storage_path": here}
static = {"staticdir.on": True, "staticdir.dir": here}
cherrypy.config.update({"environment": "embedded", "engine.autoreload.on": False})
cherrypy.tree.mount(Root(), "", {
    "/": {f"tools.{name}": value for name, value in sessions.items()},
    "/static": {f"tools.{name}": value for name, value in static.items()},
})
"""
REST_FRAMEWORK: Final = """\
from django.contrib.auth.models import User
from django.urls import include, path
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from rest_framework import routers, serializers, viewsets

class UserSerializer(serializers.HyperlinkedModelSerializer):
    class Meta:
        model = User
        fields = ["url", "username", "email"]

class UserViewSet(viewsets.ModelViewSet):
    queryset = User.objects.order_by("id")
    serializer_class = UserSerializer

router = routers.DefaultRouter()
router.register("users", UserViewSet)
urlpatterns = [path("", include(router.urls)), *staticfiles_urlpatterns()]
"""
REST_SETTINGS: Final = """\
from mysite.settings import *

INSTALLED_APPS += ["rest_framework"]
ROOT_URLCONF = "api"
REST_FRAMEWORK = {
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
    "PAGE_SIZE": 10,
}
"""
DULWICH: Final = """\
from dulwich.repo import Repo
from dulwich.server import DictBackend
from dulwich.web import make_wsgi_chain

application = make_wsgi_chain(DictBackend({"/seeds.git": Repo("seeds.git")}))
"""
MOTO: Final = """\
from moto.server import DomainDispatcherApplication, create_backend_app

application = DomainDispatcherApplication(create_backend_app)
"""
WSGIDAV: Final = """\
from wsgidav.wsgidav_app import WsgiDAVApp

application = WsgiDAVApp({
    "provider_mapping": {"/": {"root": "share"}},
    "simple_dc": {"user_mapping": {"*": {"ceres": {"password": "grains of gold"}}}},
    "property_manager": True,
    "lock_storage": True,
})
"""

APPLICATIONS: Final = (
    Application("Flask", ("flask",), f"{OF_THE_TESTS}fw_flask.py:app", flask),
    Application(
        "Django",
        ("django",),
        "django_site.wsgi",
        django,
        setup=SUPERUSER,
        environment={"DJANGO_SITE_DATA": ".", "DJANGO_SETTINGS_MODULE": "django_site.settings"},
    ),
    Application(
        "Django REST framework",
        ("djangorestframework",),
        "mysite.wsgi",
        rest_framework,
        files={"api.py": REST_FRAMEWORK, "api_settings.py": REST_SETTINGS},
        setup=(("django-admin", "startproject", "mysite", ".", "--settings="), *SUPERUSER),
        environment={"DJANGO_SETTINGS_MODULE": "api_settings"},
    ),
    Application(
        "Wagtail",
        ("wagtail",),
        "mysite.wsgi",
        wagtail,
        setup=(("wagtail", "start", "mysite", "."), *SUPERUSER),
        environment={"DJANGO_SETTINGS_MODULE": "mysite.settings.dev"},
    ),
    Application(
        "Pyramid",
        ("pyramid", "setuptools<81"),
        "paste.deploy:loadapp('config:pyramid_site/site.ini', relative_to='.', global_conf={'port': '0'})",
        pyramid,
    ),
    Application("Falcon", ("falcon",), f"{OF_THE_TESTS}fw_falcon.py:app", small_framework),
    Application("Bottle", ("bottle",), f"{OF_THE_TESTS}fw_bottle.py:app", small_framework),
    Application("CherryPy", ("cherrypy",), "app:cherrypy.tree", cherrypy, files={"app.py": CHERRYPY}),
    Application(
        "Zope",
        ("zope[wsgi]",),
        "paste.deploy:loadapp('config:etc/zope.ini', relative_to='.')",
        zope,
        setup=(("mkwsgiinstance", "-d", ".", "-u", ":".join(PASSWORD)),),
        why_one="a FileStorage belongs to one process; several need ZEO or RelStorage",
    ),
    Application(
        "WsgiDAV",
        ("wsgidav",),
        "dav:application",
        litmus,
        "litmus",
        {"dav.py": WSGIDAV},
        (("mkdir", "share"),),
        why_one="its default locks are in the memory of one process",
    ),
    Application(
        "Radicale",
        ("radicale", "caldav"),
        "radicale",
        radicale,
        "caldav",
        {"config": "[auth]\ntype = none\n[storage]\nfilesystem_folder = collections\n"},
        environment={"RADICALE_CONFIG": "config"},
    ),
    Application(
        "hgweb",
        ("mercurial",),
        "mercurial.hgweb:hgweb(b'seeds')",
        hgweb,
        "hg",
        setup=(("hg", "init", "seeds"), ("cp", "hgrc", "seeds/.hg/hgrc")),
        files={"hgrc": "[web]\nallow-push = *\npush_ssl = no\nallow-archive = zip\n"},
    ),
    Application(
        "git over HTTP",
        ("dulwich",),
        "repositories:application",
        git,
        "git",
        {"repositories.py": DULWICH},
        (("git", "init", "--bare", "--quiet", "seeds.git"),),
        {"GIT_TRACE_CURL": "1", "GIT_TRACE_CURL_NO_DATA": "1"},
    ),
    Application(
        "moto",
        ("moto[server]", "boto3"),
        "aws:application",
        moto,
        "boto3",
        {"aws.py": MOTO},
        why_one=IN_MEMORY,
    ),
)


def main(key: str, url: str) -> int:
    """Drives an application and prints what was done and what failed, as JSON; the exit status."""
    (application,) = (each for each in APPLICATIONS if each.key == key)
    driven, failure = [], ""
    try:
        for operation in application.driver(url):
            driven.append(operation)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    print(json.dumps({"driven": driven, "failure": failure}))
    return bool(failure)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
