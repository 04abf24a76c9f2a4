"""The rules of tools/check_structure.py, each with a small tree that follows it and one that breaks it."""

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SERVER = "crates/server/src/"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    yield importlib.import_module("check_structure")
    for name in list(sys.modules):
        if name == "check_structure" or name.partition(".")[0] == "structure":
            del sys.modules[name]


@pytest.fixture
def tree(tmp_path):
    """Writes files; each crate gets a manifest, and a lib.rs that declares what stands in src."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for source in tmp_path.glob("crates/*/src"):
            if not (source.parent / "Cargo.toml").exists():
                (source.parent / "Cargo.toml").write_text(f'[package]\nname = "tailrace-{source.parent.name}"\n')
            if not (source / "lib.rs").exists():
                modules = sorted({path.stem for path in source.iterdir()})
                (source / "lib.rs").write_text("".join(f"pub mod {name};\n" for name in modules))
        return tmp_path

    return write


@pytest.fixture
def imports(tool, tree):
    """{importer: {imported}} of files in crates/server/src, without that folder and the endings."""

    def read(files):
        found = tool.read(tree({f"{SERVER}{name}": text for name, text in files.items()})).imports

        def name(file):
            return file.removeprefix(SERVER).rsplit(".", 1)[0]

        return {name(one): set(map(name, targets)) for one, targets in found.items() if targets}

    return read


@pytest.fixture
def findings(tool, tree):
    """The texts of all findings."""

    def examine(files):
        root = tree(files)
        return tool.Findings.of(tool.read(root)).texts()

    return examine


ITEM = "pub struct Item;\n"


@pytest.mark.parametrize(
    "code",
    [
        "use crate::b::Item;",
        "use crate::{c::Other, b::{self, Item}};",
        "use crate::b::Item as Renamed;",
        "pub use crate::b::Item;\nfn here() {}",
        "use super::b::Item;",
        "use self::super::b::Item;",
        "use crate::b::*;",
        "use crate::b;\nfn f() { b::f() }",
        "use crate::b as other;\nfn f() { other::f() }",
        "fn f() { crate::b::f() }",
        "fn f() { use crate::b::Item; }",
        "fn f() { say!(crate::b::f()) }",
        "fn f() -> Vec<super::b::Item> { 'x'; vec![] }",
        "mod inner { use super::super::b::Item; }",
        "#[derive(crate::b::Item)]\nstruct A;",
        "/* a /* nested */ comment */ use crate::b::Item;",
        'const A: &str = "\\"//"; use crate::b::Item;',
        'const A: &str = r#"" // "#; use crate::b::Item;',
        "fn f<'a>(x: &'a str) { '\"'; crate::b::f() }",
        "#[cfg(not(test))]\nuse crate::b::Item;",
        '#[cfg(any(test, feature = "x"))]\nuse crate::b::Item;',
        "#[cfg(test)]\nuse crate::c::{Other};\nuse crate::b::Item;",
        "#[cfg(test)]\nconst fn f() {}\nuse crate::b::Item;",
        "struct A { #[cfg(test)] a: crate::c::Other, b: crate::b::Item }",
    ],
)
def test_an_import_is_an_edge_however_it_is_written(imports, code):
    assert imports({"a.rs": code, "b.rs": ITEM, "c.rs": ITEM}) in ({"a": {"b"}}, {"a": {"b", "c"}})


@pytest.mark.parametrize(
    "code",
    [
        "use crate::b;",
        "// use crate::b::Item;",
        "/// See [`crate::b::Item`].\nfn f() {}",
        "//! crate::b::f()",
        "/* /* */ use crate::b::Item; */",
        'const A: &str = "crate::b::f()";',
        'const A: &str = r##"crate::b::f()"# crate::b::f()"##;',
        "#[cfg(test)]\nmod tests { use crate::b::Item; fn f() { crate::b::f() } }",
        "#[cfg(all(test, unix))]\nuse crate::b::{Item};",
        "#[test]\nfn f() -> [u8; 2] { crate::b::f() }",
        "#![cfg(test)]\nuse crate::b::Item;",
        "pub(in crate::b) fn f() {}",
        "mod b { pub fn f() {} }\nfn f() { b::f() }",
        "use std::b::Item;\nfn f() { other::b::f() }",
    ],
)
def test_what_is_no_import_is_no_edge(imports, code):
    assert imports({"a.rs": f"{code}\n", "b.rs": ITEM}) == {}


def test_an_import_through_a_re_export_goes_to_the_file_that_defines_the_item(imports):
    files = {
        "a.rs": "use crate::b::{Deep, Renamed, Own, Starred};",
        "b.rs": "mod c; mod d; mod e;\npub use self::c::Deep; pub use d::Item as Renamed; pub use e::*; struct Own;",
        "b/c.rs": "pub struct Deep;",
        "b/d.rs": "pub struct Item;",
        "b/e.rs": "pub struct Starred;",
    }
    assert imports(files) == {"a": {"b", "b/c", "b/d", "b/e"}, "b": {"b/c", "b/d", "b/e"}}


def test_a_file_of_declarations_alone_has_no_edges(imports):
    only_declares = "//! A folder.\nmod c;\npub(crate) use self::c::Deep;\nuse crate::a::Item;\n"
    inside = "pub struct Deep;\nuse crate::a::Item;"
    assert imports({"a.rs": ITEM, "b/mod.rs": only_declares, "b/c.rs": inside}) == {"b/c": {"a"}}
    assert imports({"b/mod.rs": f"{only_declares}fn f() {{}}"})["b/mod"] == {"a", "b/c"}


def test_the_file_of_a_module_is_the_one_that_rustc_takes(imports):
    files = {
        "lib.rs": '#[path = "elsewhere/x.rs"]\nmod a;\nmod b;\nmod c;\n#[cfg(test)]\nmod tests;\n',
        "elsewhere/x.rs": "use crate::b::inner::deep::Item;",
        "b.rs": "pub mod inner { pub mod deep; }",
        "b/inner/deep.rs": "pub struct Item; fn f() { super::super::super::c::f() }",
        "c/mod.rs": "mod d; pub fn f() { d::f() }",
        "c/d.rs": "",
        "tests.rs": "use crate::b::Item;",
    }
    assert imports(files) == {"elsewhere/x": {"b/inner/deep"}, "b/inner/deep": {"c/mod"}, "c/mod": {"c/d"}}


def test_a_macro_is_imported_from_where_it_is_written(imports):
    assert imports({"a.rs": "fn f() { say!() }", "b.rs": "macro_rules! say { () => {} }"}) == {"a": {"b"}}


def test_an_import_from_another_crate_is_an_edge(tool, tree):
    root = tree({"crates/http/src/head.rs": ITEM, f"{SERVER}a.rs": "use tailrace_http::head::Item;"})
    assert set(tool.read(root).imports[f"{SERVER}a.rs"]) == {"crates/http/src/head.rs"}


def test_a_file_that_nobody_declares_is_found(findings):
    assert findings({f"{SERVER}lib.rs": "mod a;", f"{SERVER}a.rs": ""}) == []
    assert findings({f"{SERVER}b.rs": ""}) == [f"{SERVER}b.rs: no `mod` declares it"]
    assert findings({f"{SERVER}lib.rs": "mod a;\n#[cfg(test)]\nmod b;"}) == []


def test_a_cycle_of_files_is_found_with_the_shortest_way_around(findings):
    files = {
        f"{SERVER}a.rs": "\nuse crate::b::B;",
        f"{SERVER}b.rs": "use crate::c::C;\nuse crate::d::D;",
        f"{SERVER}c.rs": "use crate::a::A;",
        f"{SERVER}d.rs": "",
    }
    assert findings(files | {f"{SERVER}c.rs": ""}) == []
    assert findings(files) == [
        "server: 3 files import each other in a circle; the shortest way around:\n"
        f"    {SERVER}a.rs:2 imports {SERVER}b.rs (B)\n"
        f"    {SERVER}b.rs:1 imports {SERVER}c.rs (C)\n"
        f"    {SERVER}c.rs:1 imports {SERVER}a.rs (A)"
    ]


@pytest.mark.parametrize(
    ("imported", "cycle"),
    [
        # Two folders, without a cycle of files.
        ({"x/one": "y::one", "y/two": "x::two"}, True),
        ({"x/one": "y::one", "x/two": "y::one"}, False),
        # A folder and a file next to it.
        ({"x/one": "a", "a": "x::two"}, True),
        ({"x/one": "a", "b": "x::two"}, False),
        # Folders within a folder; and what a file of the outer one does is not theirs.
        ({"z/x/one": "z::y::one", "z/y/two": "z::x::two"}, True),
        ({"z/x/one": "z::y::one", "z/a": "z::x::two"}, False),
    ],
)
def test_a_cycle_among_what_stands_next_to_each_other_is_found(findings, imported, cycle):
    files = {f"{place}/mod": "pub mod one;\npub mod two;\n" for place in ("x", "y", "z/x", "z/y")}
    files["z/mod"] = "pub mod a;\npub mod x;\npub mod y;\n"
    files |= {f"{place}/{name}": ITEM for place in ("x", "y", "z/x", "z/y") for name in ("one", "two")}
    files |= dict.fromkeys(("a", "b", "z/a"), ITEM)
    for name, module in imported.items():
        files[name] += f"use crate::{module}::Item as Other;\n"
    found = findings({f"{SERVER}{name}.rs": text for name, text in files.items()})
    assert len(found) == cycle
    assert not found or "files and folders of crates/server/src" in found[0]


@pytest.mark.parametrize("place", ["x.rs", "x/mod.rs"])
def test_the_file_of_a_folder_counts_as_standing_in_it(findings, place):
    # x -> x/a and x/b -> x: a cycle neither of files nor of what stands in x.
    files = {place: "mod a;\nmod b;\npub struct X;\nuse a::A;", "x/a.rs": "pub struct A;", "x/b.rs": "use super::X;"}
    assert findings({f"{SERVER}{name}": text for name, text in files.items()}) == []
    [finding] = findings({f"{SERVER}x/a.rs": "pub struct A(super::X);"})
    assert "2 files import each other" in finding


@pytest.mark.parametrize(
    ("rule", "code", "here"),
    [
        ("unsafe only", "unsafe fn f() {}", "server/src/os/memory.rs"),
        ("unsafe only", "fn f() { unsafe { g() } }", "wsgi/src/ffi/calls.rs"),
        ("system calls only", "fn f() { rustix::fs::open() }", "server/src/os/files.rs"),
        ("system calls only", "use rustix::{io::Errno, fs::{OFlags, open}};", "server/src/os/files.rs"),
        ("system calls only", "use rustix::event::epoll;\nfn f() { epoll::wait() }", "server/src/os/epoll.rs"),
        ("system calls only", "fn f() { libc::getpid() }", "server/src/os/epoll.rs"),
        ("system calls only", "use std::os::unix::net::UnixStream;", "server/src/os/epoll.rs"),
        ("system calls only", "use std::{fs, net::TcpListener};", "server/src/os/epoll.rs"),
        ("system calls only", "use std::fs;\nfn f() { fs::remove_file() }", "server/src/os/epoll.rs"),
        ("system calls only", "use std::fs::File;\nfn f() { File::open() }", "server/src/os/epoll.rs"),
        ("the clock only", "fn f() { std::time::Instant::now() }", "server/src/os/clock.rs"),
        ("the clock only", "use std::time::Instant as I;\nfn f() { g(I::now) }", "server/src/os/clock/mod.rs"),
        ("the clock only", "use std::time;\nfn f() { time::SystemTime::now() }", "server/src/os/clock.rs"),
        ("the clock only", "fn f() { since.elapsed() }", "server/src/os/clock.rs"),
        ("probes only", "use probe::{probe, probe_lazy};", "server/src/observe/probes.rs"),
        ("pyo3 only", "use pyo3::Python;", "wsgi/src/call.rs"),
    ],
)
def test_a_permit_holds_for_its_folder_alone(findings, rule, code, here):
    name = here.split("/")[-1]
    elsewhere = f"crates/http/src/{name}"
    shown = [text for text in findings({f"crates/{here}": code, elsewhere: code}) if "no `mod`" not in text]
    assert shown == [text for text in shown if text.startswith(f"{elsewhere}:") and f": {rule} in " in text] != []


@pytest.mark.parametrize(
    "code",
    [
        "use std::os::fd::{BorrowedFd, OwnedFd};",
        "use rustix::io::Errno;\nconst A: u32 = rustix::fs::OFlags::empty();",
        "use rustix::fs;",
        "use rustix::event::epoll;\nfn f(flags: epoll::EventFlags) {}",
        "const A: i32 = libc::SIGTERM; type B = libc::c_int;",
        "use std::net::{IpAddr, SocketAddr};",
        "use std::fs::File;\nfn f() { File::from(descriptor) }",
        "use std::time::{Duration, Instant};\nfn f(elapsed: Duration) { other::now(elapsed) }",
        '// unsafe, pyo3, Instant::now()\nconst A: &str = "unsafe pyo3";\n#![deny(unsafe_code)]',
        "#[cfg(test)]\nmod tests { unsafe fn f() { std::time::Instant::now() } }",
    ],
)
def test_types_comments_and_tests_need_no_permit(findings, code):
    assert findings({"crates/http/src/a.rs": code}) == []


def test_the_cuts_are_the_fewest(tool):
    graph = importlib.import_module("structure.graph")
    # Two cycles that share one edge, and a third one beside them.
    edges = {"a": "b", "b": "cd", "c": "a", "d": "a", "e": "f", "f": "e"}
    assert graph.knots(edges) == [["a", "b", "c", "d"], ["e", "f"]]
    assert graph.cuts(edges, ["a", "b", "c", "d"], {}) == [("a", "b")]
    assert graph.cuts(edges, ["e", "f"], {("e", "f"): 3, ("f", "e"): 2}) == [("f", "e")]
    assert graph.shortest_cycle(edges, ["a", "b", "c", "d"]) == ["a", "b", "c", "a"]
    ring = dict(zip("afchbgdie", "fchbgdiea", strict=True))
    assert len(graph.cuts(ring, list(ring), {})) == 1
    # All 20 edges of 5 nodes: no order has fewer than 10 against it.
    every = {one: [two for two in "vwxyz" if two != one] for one in "vwxyz"}
    assert len(graph.cuts(every, list(every), {})) == 10


GOOD = {f"{SERVER}a.rs": "use crate::x::X;\n", f"{SERVER}x/mod.rs": "pub struct X;\n"}
MARKS = "<!-- folders: written by tools/check_structure.py --write-doc -->\nold\n<!-- end of folders -->\n"


def test_the_document_has_the_picture(tool, tree, capsys):
    root = tree(GOOD | {"docs/architecture.md": f"before\n{MARKS}after\n"})
    assert tool.main([], root) == 1
    assert "the picture of the folders is stale" in capsys.readouterr().out
    assert tool.main(["--write-doc"], root) == 0
    lines = (root / "docs/architecture.md").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines[3:5] == ["    server", "    server/x"]
    capsys.readouterr()
    assert tool.main([], root) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 files, 1 imports, 0 cycles, 0 exceptions\n")
    assert "\n".join(lines[3:5]) in said
