"""The pictures of the manual, by tools/pictures.py, whose `--check` says whether they follow the sources; here: what it
cannot know."""

import json
import re

import pytest
from harness.pages import DOCS, ROOT
from harness.programs import module_of
from harness.server import Server

pictures = module_of("tools/pictures.py")


@pytest.fixture(autouse=True, scope="module")
def tools():
    """The script imports another one of its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield


def test_they_are_up_to_date(pictures, monkeypatch):
    monkeypatch.setattr(pictures.sys, "argv", ["pictures.py", "--check"])
    assert pictures.main() == 0


def test_a_picture_that_does_not_agree_with_the_sources_is_an_error(pictures, monkeypatch):
    monkeypatch.delitem(pictures.TO_MASTER, "HUP")
    with pytest.raises(ValueError, match=r"signals to the master: .*: HUP"):
        pictures.processes()
    monkeypatch.setattr(pictures, "PHASES", (*pictures.PHASES, ("resting", True, "")))
    with pytest.raises(ValueError, match=r"phases: .*: resting"):
        pictures.phases()


def test_each_is_small_and_on_a_page_with_a_description(pictures):
    shown = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    for name in pictures.PICTURES:
        assert (DOCS / "images" / f"{name}.svg").stat().st_size < 6000
        (description,) = re.findall(rf"!\[([^\]]+)\]\(\S*images/{name}\.svg\)", shown)
        assert len(description) > 40


def test_the_client_that_the_picture_shows_is_found(pictures):
    # This machine is the proxy nearest to the server.
    proxies = f"{pictures.TRUSTED},127.0.0.1"
    for trusted, client in ((proxies, pictures.CLIENT), ("127.0.0.1", pictures.BALANCER)):
        with Server("fw_delivery:app", trusted_proxies=trusted) as server:
            answer = server.get("/a", f"X-Forwarded-For: {pictures.FORWARDED_FOR}")
            assert json.loads(answer.body)["REMOTE_ADDR"] == client
