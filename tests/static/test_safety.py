"""No request gets what is not meant for it: attempts over a real socket, links, hidden and special files, changes."""

import ctypes
import itertools
import json
import os
import socket
import threading
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from harness.wire import Broken
from server.probes import eventually
from static.site import ask, expanded, overlaying, pattern, request, serving, tree, write

LINES = [
    line.split(" ")
    for line in (Path(__file__).parent.parent / "data/traversal.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
OF_THE_TREE = ("inside", "outside", "link")
ATTEMPTS = [(words[0], expanded(words[1])) for words in LINES if words[0] not in OF_THE_TREE]
SECRET = b"the secret of the folder outside"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The tree of the table; the folder to serve is `st` in it."""
    top = tmp_path_factory.mktemp("traversal")
    for words in LINES:
        if words[0] not in OF_THE_TREE:
            continue
        name = unquote_to_bytes(words[1])
        path = os.path.join(os.fsencode(top if words[0] == "outside" else top / "st"), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if words[0] == "link":
            os.symlink(words[2], path)
        else:
            with open(path, "wb") as file:
                file.write(name if words[0] == "inside" else b"outside")
    return top / "st"


def answer(server, target):
    """Status and body of the response to a target as it stands, on a connection of its own."""
    with server.client() as client:
        got = client.ask(b"GET " + target.encode("latin-1") + b" HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        client.at_end()
        return got


def test_each_attempt_over_a_socket_has_its_outcome(root):
    assert len(ATTEMPTS) > 300
    faults = []
    # The index of the folder is not part of the table.
    with serving(root, "--static-index", "no-index", prefix="/static") as server:
        for round_ in range(2):
            for outcome, target in ATTEMPTS:
                got = answer(server, target)
                word, _, name = outcome.partition("=")
                is_of_application = got.status == 200 and b'"REQUEST_METHOD"' in got.body
                is_right = {
                    "file": lambda: (got.status, got.body) == (200, unquote_to_bytes(name)),  # noqa: B023
                    "folder": lambda: got.status == (404 if target.endswith("/") else 301),  # noqa: B023
                    "missing": lambda: got.status == 404,  # noqa: B023
                    "refused": lambda: got.status == 404,  # noqa: B023
                    "leaves": lambda: got.status == 404,  # noqa: B023
                    "bad": lambda: got.status == 400,  # noqa: B023
                    # The application, or a refusal of the target by the parser.
                    "elsewhere": lambda: is_of_application or got.status == 400,  # noqa: B023
                }[word]()
                if not is_right or got.body == b"outside":
                    faults.append((round_, outcome, target, got.status, got.body[:80]))
    assert not faults


def test_no_attempt_gets_a_file_from_outside_of_an_overlay(root):
    faults = []
    with overlaying(root) as server:
        for outcome, target in ATTEMPTS:
            target = target.removeprefix("/static") or "/"
            target = target if target.startswith("/") else "/" + target
            got = answer(server, target)
            word, _, name = outcome.partition("=")
            if got.body == b"outside":
                faults.append((outcome, target, got.body))
            elif word == "file":
                if (got.status, got.body) != (200, unquote_to_bytes(name)):
                    faults.append((outcome, target, got.status, got.body[:80]))
            elif word == "elsewhere":
                # Without the prefix it may be a file of the overlay.
                continue
            elif not (got.status == 200 and b'"REQUEST_METHOD"' in got.body) and got.status != 400:
                faults.append((outcome, target, got.status, got.body[:80]))
    assert not faults


LINKS = {
    "inside": "a.txt",
    "inside-folder": "folder",
    "folder/up": "../a.txt",
    "out": "../secret.txt",
    "out-folder": "../out",
    "absolute": "{top}/out/secret.txt",
    "absolute-inside": "{top}/site/a.txt",
    "loop": "loop",
    "dangling": "nothing",
}
# Links to folders get the redirection to their list.
REDIRECTED = {"beneath": {"inside-folder"}, "never": set(), "follow": {"inside-folder", "out-folder"}}


@pytest.fixture
def linked(tmp_path):
    folder = tree(tmp_path / "site", {"a.txt": b"inside", "folder/b.txt": b"b"})
    tree(tmp_path, {"secret.txt": SECRET, "out/secret.txt": SECRET})
    for name, target in LINKS.items():
        (folder / name).symlink_to(target.format(top=tmp_path))
    return folder


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("beneath", {"inside": b"inside", "inside-folder/b.txt": b"b", "folder/up": b"inside"}),
        ("never", {}),
        (
            "follow",
            {
                "inside": b"inside",
                "inside-folder/b.txt": b"b",
                "folder/up": b"inside",
                "out": SECRET,
                "out-folder/secret.txt": SECRET,
                "absolute": SECRET,
                "absolute-inside": b"inside",
            },
        ),
    ],
)
def test_links(linked, policy, served):
    targets = [*LINKS, "inside-folder/b.txt", "out-folder/secret.txt"]
    with serving(linked, static_symlinks=policy) as server, server.client() as client:
        for _ in range(2):
            for name in targets:
                got = ask(client, f"/assets/{name}")
                if name in served:
                    assert (got.status, got.body) == (200, served[name]), name
                else:
                    assert got.status == (301 if name in REDIRECTED[policy] else 404), name
                    assert SECRET not in got.body
            assert ask(client, "/assets/a.txt").body == b"inside"


SERVED = ".well-known/security.txt"
HIDDEN = {".env": b"1", ".git/config": b"2", SERVED: b"3", ".well-known/.x": b"4", "a/.well-known/x": b"5"}


def test_dot_files(tmp_path):
    folder = tree(tmp_path / "site", HIDDEN)
    with serving(folder) as server, server.client() as client:
        for name, content in HIDDEN.items():
            got = ask(client, f"/assets/{name}")
            assert (got.status, got.body) == (200, content) if name == SERVED else got.status == 404, name
    with overlaying(folder) as server, server.client() as client:
        for name, content in HIDDEN.items():
            got = ask(client, f"/{name}")
            if name == SERVED:
                assert got.body == content
            else:
                assert json.loads(got.body)["PATH_INFO"] == f"/{name}"


# A volume of Kubernetes' ConfigMaps: its files are switched together, by a link whose name begins with a dot.
VOLUME = {"a.txt": "..data/a.txt", "..data": "..2026_11_23", "todot": ".env"}


@pytest.mark.parametrize(("policy", "is_followed"), [("beneath", True), ("never", False), ("follow", True)])
def test_a_link_may_lead_to_a_name_that_begins_with_a_dot(tmp_path, policy, is_followed):
    folder = tree(tmp_path / "site", {"..2026_11_23/a.txt": b"switched", ".env": b"named"})
    for name, target in VOLUME.items():
        (folder / name).symlink_to(target)
    with serving(folder, static_symlinks=policy) as server, server.client() as client:
        for name, content in {"a.txt": b"switched", "todot": b"named"}.items():
            got = ask(client, f"/assets/{name}")
            assert (got.status, got.body) == (200, content) if is_followed else got.status == 404, name
        for name in ("..data/a.txt", "..2026_11_23/a.txt", ".env"):
            assert ask(client, f"/assets/{name}").status == 404


def test_special_files_are_missing_and_nobody_waits(tmp_path):
    folder = tree(tmp_path / "site", {"a.txt": b"a", "d/a.txt": b"a"})
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "d/index.html")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)
        listener.bind("socket")
        os.chdir(here)
        names = ["pipe", "socket", "d/"]
        try:
            os.mknod(folder / "null", 0o666 | 0o020000, os.makedev(1, 3))
            os.mknod(folder / "tty", 0o666 | 0o020000, os.makedev(5, 0))
            names += ["null", "tty"]
        except PermissionError:
            pass
        with serving(folder) as server, server.client() as client:
            for _ in range(2):
                for name in names:
                    assert ask(client, f"/assets/{name}").status == 404, name
            assert ask(client, "/assets/a.txt").status == 200
        with overlaying(folder) as server, server.client() as client:
            for name in names:
                assert json.loads(ask(client, f"/{name}").body)["PATH_INFO"] == f"/{name}"


def test_files_that_the_server_may_not_read_are_missing(tmp_path):
    folder = tree(tmp_path / "site", {"a.txt": b"a", "no.txt": b"secret", "no/a.txt": b"secret"})
    (folder / "no.txt").chmod(0)
    (folder / "no").chmod(0)
    try:
        with serving(folder, app="powerless:app") as server, server.client() as client:
            for name in ("no.txt", "no/a.txt", "no/", "no/nothing"):
                assert ask(client, f"/assets/{name}").status == 404, name
            assert ask(client, "/assets/a.txt").body == b"a"
            eventually(lambda: ask(client, "/assets/b.txt").status == 404 and write(folder / "b.txt", b"b"), "no file")
            eventually(lambda: ask(client, "/assets/b.txt").body == b"b", "a new file")
            (folder / "a.txt").chmod(0)
            eventually(lambda: ask(client, "/assets/a.txt").status == 404, "no permission any more")
    finally:
        (folder / "no").chmod(0o755)


def test_a_folder_beside_is_another_one(tmp_path):
    folder = tree(tmp_path / "st", {"a.txt": b"a"})
    tree(tmp_path / "st-x", {"a.txt": SECRET})
    with serving(folder, prefix="/st") as server, server.client() as client:
        for target in ("/st-x/a.txt", "/st/../st-x/a.txt", "/st/-x/a.txt", "/st/%2e%2e/st-x/a.txt", "/st%2d%78/a.txt"):
            assert SECRET not in ask(client, target).body


LIBC = ctypes.CDLL(None, use_errno=True)


def exchange_names(one, other):
    """Swaps two names at once (renameat2 with RENAME_EXCHANGE)."""
    if LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.parametrize("size", [len(SECRET), 200_000], ids=["memory", "sendfile"])
def test_a_folder_that_is_swapped_with_a_link_never_leads_out(tmp_path, size):
    secret, content = (SECRET * (size // len(SECRET) + 1))[:size], pattern(size)
    folder = tree(tmp_path / "site", {f"box/{number}.txt": content for number in range(50)})
    tree(tmp_path / "out", {f"{number}.txt": secret for number in range(50)})
    (folder / "link").symlink_to("../out")
    ended = threading.Event()

    def swap():
        while not ended.is_set():
            exchange_names(folder / "box", folder / "link")

    swapping = threading.Thread(target=swap)
    seen = {200: 0, 404: 0}
    with serving(folder, static_memory="0") as server, server.client() as client:
        swapping.start()
        try:
            for number in itertools.islice(itertools.cycle(range(50)), 4_000):
                got = ask(client, f"/assets/box/{number}.txt")
                assert got.status in (200, 404)
                assert got.body == content if got.status == 200 else secret not in got.body
                seen[got.status] += 1
        finally:
            ended.set()
            swapping.join()
    assert all(seen.values()), seen


def test_a_response_for_a_path_never_breaks_the_next_one(root):
    with serving(root, prefix="/static") as server, server.client() as client:
        for outcome, target in ATTEMPTS:
            if " " in target or len(target) > 4_000 or outcome == "elsewhere":
                continue
            try:
                first = client.ask(request(target) + request("/static/site.css"))
                if "close" in first.connection:
                    break
                assert client.response().body == b"site.css"
            except Broken:
                pytest.fail(f"{target} breaks the connection")
