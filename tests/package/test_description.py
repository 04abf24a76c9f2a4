"""tools/description.py: README.md as a package index shows it."""

import re
from pathlib import Path

import pytest
from harness.programs import module_of

ROOT = Path(__file__).resolve().parents[2]
URLS = {
    "Documentation": "https://d.example/docs",
    "Changelog": "https://d.example/changes",
    "Source": "https://s.example",
}

tool = module_of("tools/description.py")


@pytest.mark.parametrize(
    ("readme", "text"),
    [
        ("[docs/a.md](docs/a.md)", "[a](https://d.example/docs/a.html)"),
        ("[there](docs/guides/a.md#b)", "[there](https://d.example/docs/guides/a.html#b)"),
        ("![A chart](docs/images/a.svg)", "![A chart](https://d.example/docs/images/a.svg)"),
        ("[CHANGELOG.md](CHANGELOG.md)", "[CHANGELOG.md](https://d.example/changes)"),
        ("[CONTRIBUTING.md](CONTRIBUTING.md)", "[CONTRIBUTING.md](https://s.example)"),
        ("[PEP](https://peps.python.org/)", "[PEP](https://peps.python.org/)"),
        ("pip install .\n", "pip install tailrace\n"),
        ("`pip install '.[gevent]'`", "`pip install 'tailrace[gevent]'`"),
        ("pip install ./wheel", "pip install ./wheel"),
        ("one\n\n<!-- only in the repository -->\n## A\n\nb\n<!-- end -->\n\ntwo\n", "one\n\ntwo\n"),
        ("<!-- not run: why -->\n```console\n", "```console\n"),
    ],
)
def test_a_description_has_addresses_of_the_web_and_commands_for_the_index(tool, readme, text):
    assert tool.description(readme, URLS) == text


def test_the_description_follows_the_readme_and_every_link_leads_to_the_web(tool):
    text = tool.FILE.read_text()
    assert text == tool.fresh(), "run tools/description.py"
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    assert "<!--" not in text
    assert "pip install tailrace\n" in text
    assert "make serve" not in text


def test_pyproject_takes_the_description(tool):
    assert f'readme = "{tool.FILE.relative_to(ROOT)}"' in (ROOT / "pyproject.toml").read_text()
