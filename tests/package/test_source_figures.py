"""What tools/source_figures.py counts in small sources."""

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
DRIVER = """//! What a driver does.
pub struct Driver<'a> { data: &'a [u8] }
pub enum State { Idle }

impl<'a> Driver<'a> {
    pub fn read(&mut self, into: &mut [u8]) -> bool {
        // A comment.
        true
    }

    fn is_read(&mut self) -> bool { true }

    fn length(&self) -> Result<bool, Error> { Ok(self.data.is_empty()) }
}

impl Iterator for Driver<'_> {
    fn next(&mut self) -> Option<bool> { None }
}

fn note(seen: &AtomicBool) -> bool { seen.swap(true, Relaxed) }

#[cfg(test)]
mod tests {
    struct Driver;
}
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    yield importlib.import_module("source_figures")
    for name in list(sys.modules):
        if name == "source_figures" or name.partition(".")[0] == "structure":
            del sys.modules[name]


@pytest.fixture
def figures(tool, tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / "crates/server" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "crates/server/Cargo.toml").write_text('[package]\nname = "server"\n')
        return tool.read(tmp_path)

    return write


def test_methods_are_those_of_the_type_itself(figures):
    found = figures({"src/lib.rs": DRIVER})
    assert found.widest() == [(3, "Driver", "crates/server/src/lib.rs")]


def test_a_name_of_several_types_is_found_outside_of_tests(figures):
    other = "pub trait State { fn begin(&self); }\n"
    found = figures({"src/lib.rs": f"mod other;\n{DRIVER}", "src/other.rs": other, "tests/x.rs": "struct Driver;\n"})
    assert found.repeated() == {"State": ["crates/server/src/lib.rs", "crates/server/src/other.rs"]}


def test_a_bool_is_unclear_if_the_function_changes_something_and_asks_nothing(figures):
    assert [each.name for each in figures({"src/lib.rs": DRIVER}).unclear()] == ["read", "note"]


def test_lines_of_tests_are_counted_apart_and_comments_not_at_all(figures, tool):
    found = figures({"src/lib.rs": DRIVER, "tests/x.rs": "struct X;\n\n// Y\n"})
    assert (found.code["server"], found.tests["server"]) == (13, 5)
    assert "13       5  server" in tool.report(found)
