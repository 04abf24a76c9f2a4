"""The sessions of the manual's pages: what `run:` and `log:` markers name, and what a reader does not see of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Session:
    """Blocks of one page with the same name, run in their order in one directory.

    application: the file that is `shop.py` there; empty: the blocks of the page with the title of a file. start: a
    server that runs before the first block. more: options of every server, stronger than those on the page. meanwhile:
    paths that are asked for when the server serves, without waiting for the responses. queued: how many requests must
    wait for a thread before the session continues. before_log: paths that are asked for before the log is compared.
    modules: what the application imports. files: the titles of further blocks of the page that are files there. table:
    the marker of a table with the names of further files and their texts. port: that of the server on the page.
    """

    application: str = "shop.py"
    start: str = ""
    more: tuple[str, ...] = ()
    meanwhile: tuple[str, ...] = ()
    queued: int | None = None
    before_log: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    table: str = ""
    port: int = 8000


SESSIONS = {
    # tutorial.md
    "flask": Session(application="", modules=("flask",)),
    # guides/
    "flask-factory": Session(application="", modules=("flask",)),
    "pool": Session(start="tailrace shop:app --status 127.0.0.1:9000"),
    "preload": Session(start="tailrace shop:app --workers 2 --preload --status 127.0.0.1:9000"),
    "preload-threads": Session(application="shop_with_thread.py", start="tailrace shop:app --preload"),
    "metrics": Session(modules=("prometheus_client",)),
    "application-metrics": Session(application="", modules=("prometheus_client",)),
    "events": Session(application="", modules=("flask",)),
    "held": Session(application="", modules=("flask",)),
    "publish": Session(application="", modules=("flask",)),
    "files": Session(application="", modules=("flask",)),
    # coming-from/
    "from-gunicorn": Session(files=("gunicorn.conf.py", "hooks.py"), port=8001),
    "gunicorn-project": Session(files=("gunicorn.conf.py",), table="project: gunicorn"),
    "from-uwsgi": Session(files=("uwsgi.ini",)),
    "from-granian": Session(),
    "from-waitress": Session(files=("production.ini",)),
    "from-mod-wsgi": Session(),
    "from-nginx-unit": Session(),
    # status.md
    "status": Session(modules=("prometheus_client",)),
    # upgrading.md
    "versions": Session(),
    # configuration.md
    "configuration": Session(files=("tailrace.toml",)),
    "configuration-error": Session(),
    # troubleshooting.md
    "wrong-name": Session(),
    "failure": Session(start="tailrace shop:app", before_log=("/fail",)),
    "nothing-listens": Session(),
    "queue": Session(meanwhile=("/report", "/report"), queued=1),
    "deadline": Session(more=("--request-timeout", "0.5")),
    "slow-body": Session(more=("--body-timeout", "1")),
    "refused": Session(),
    "crash": Session(start="tailrace shop:app", before_log=("/crash",)),
    "hang": Session(start="tailrace shop:app", more=("--hang-timeout", "3"), before_log=("/spin",)),
    "replaced": Session(start="tailrace shop:app --max-requests 2", before_log=("/", "/")),
    "delivery": Session(),
    "memory": Session(modules=("prometheus_client",)),
    "in-use": Session(),
    "differences": Session(start="tailrace shop:app", before_log=("/bare", "/short")),
}
