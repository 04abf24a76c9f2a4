"""tools/third_party.py: which crates are linked into the core, and the texts of their licences."""

from pathlib import Path

import pytest
from harness.programs import module_of
from harness.tools import need_tool

ROOT = Path(__file__).resolve().parents[2]

third_party = module_of("tools/third_party.py")


@pytest.fixture
def crate(tmp_path):
    """Writes a crate with these files; what `cargo metadata` says of it."""

    def write(name, licence="MIT OR Apache-2.0", files=(), kind="lib", source="registry", repository=None):
        directory = tmp_path / name
        directory.mkdir()
        for each in files:
            (directory / each).write_text(f"{each} of {name}  \n\n")
        return {
            "id": name,
            "name": name,
            "version": "1.0.0",
            "license": licence,
            "source": source,
            "repository": repository,
            "manifest_path": str(directory / "Cargo.toml"),
            "targets": [{"kind": [kind]}],
        }

    return write


def test_what_is_linked_is_no_build_script_test_or_macro_and_not_ours(third_party, crate):
    def needs(name, *others):
        return {"id": name, "deps": [{"pkg": other, "dep_kinds": [{"kind": kind}]} for other, kind in others]}

    names = ("linked", "deep", "build", "test", "of-macro")
    packages = [crate(name) for name in names]
    packages += [crate(name, source=None) for name in ("tailrace-wsgi", "tailrace-http", "tailrace-fuzz")]
    packages.append(crate("macro", kind="proc-macro"))
    nodes = [
        needs("tailrace-wsgi", ("tailrace-http", None), ("macro", None), ("build", "build"), ("test", "dev")),
        needs("tailrace-http", ("linked", None)),
        needs("linked", ("deep", None)),
        needs("macro", ("of-macro", None)),
        *(needs(name) for name in ("deep", "build", "test", "of-macro", "tailrace-fuzz")),
    ]
    found = third_party.linked({"packages": packages, "resolve": {"nodes": nodes}})
    assert {each["name"] for each in found} == {"linked", "deep"}


@pytest.mark.parametrize(
    ("licence", "files", "taken"),
    [
        ("MIT OR Apache-2.0", ["LICENSE-APACHE", "LICENSE-MIT", "COPYRIGHT"], ["LICENSE-MIT"]),
        ("Unlicense OR MIT", ["COPYING", "LICENSE-MIT", "UNLICENSE"], ["LICENSE-MIT"]),
        ("MIT/Apache-2.0", ["LICENSE-APACHE"], ["LICENSE-APACHE"]),
        ("BSD-3-Clause AND MIT", ["LICENSE.BSD", "LICENSE.MIT"], ["LICENSE.BSD", "LICENSE.MIT"]),
        ("Apache-2.0", ["LICENSE-APACHE", "NOTICE", "README.md"], ["LICENSE-APACHE", "NOTICE"]),
    ],
)
def test_where_a_licence_can_be_chosen_the_texts_are_those_of_mit(third_party, crate, licence, files, taken):
    assert third_party.texts(crate("one", licence, files), []) == [f"{each} of one" for each in taken]


def test_a_crate_without_a_text_has_that_of_its_repository_or_is_named(third_party, crate):
    bare = crate("bare", "MIT", repository="r")
    assert third_party.texts(bare, [bare, crate("full", "MIT", ["LICENSE"], repository="r")]) == ["LICENSE of full"]
    with pytest.raises(third_party.Problem, match=r"bare 1\.0\.0 has no file with its licence"):
        third_party.texts(bare, [bare, crate("other", "MIT", ["LICENSE"], repository="s")])


def test_the_file_has_the_crates_of_the_lock_file(third_party, monkeypatch, tmp_path):
    need_tool("cargo")
    assert third_party.is_current(), "run tools/third_party.py"
    monkeypatch.setattr(third_party, "FILE", tmp_path / "THIRD-PARTY.txt")
    assert not third_party.is_current()
