import importlib.util
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def structure():
    spec = importlib.util.spec_from_file_location("check_structure", TOOLS / "check_structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def house(tmp_path):
    """A crate of three files in the declared order low, middle, high."""

    def build(**changed):
        sources = {"lib": "mod low;\nmod middle;\nmod high;\n", "low": "", "middle": "use crate::low::A;\n", "high": ""}
        for name, source in (sources | changed).items():
            path = tmp_path / "crates" / "http" / "src" / f"{name}.rs"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path, "http", (("low",), ("middle",), ("high",))

    return build


def test_the_declared_order_passes(structure, house):
    assert list(structure.file_findings(*house())) == []


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"low": "use crate::high::B;\n"}, "low.rs: names high, which stands in a higher layer"),
        ({"low": "fn f() { crate::{middle, high}::g() }\n"}, "low.rs: names middle"),
        ({"new": ""}, "new.rs: give it a layer"),
        ({"low": "unsafe fn f() {}\n"}, "low.rs: unsafe may stand only in"),
        ({"low": "use pyo3::Python;\n"}, "low.rs: only crates/wsgi may name pyo3"),
        ({"low": "use penstock_server::wire;\n"}, "low.rs: http must not use the crate server"),
        ({"low": "//! A noun.\n" + "\n" * 601}, "low.rs: 602 lines"),
    ],
)
def test_what_goes_against_the_declaration_is_found(structure, house, changed, finding):
    findings = list(structure.file_findings(*house(**changed)))
    assert any(finding in line for line in findings), findings


@pytest.mark.parametrize(
    "source",
    [
        "// crate::high is above, unsafe and pyo3 elsewhere\n",
        'const A: &str = "crate::high unsafe pyo3";\n',
        "#[cfg(test)]\nmod tests {\n    use crate::high::B;\n}\n",
        "//! A noun; its table has many lines.\n" + "\n" * 601,
    ],
)
def test_comments_strings_tests_and_explained_length_are_not_held_against_a_file(structure, house, source):
    assert list(structure.file_findings(*house(low=source))) == []


def test_a_declared_file_that_is_gone_is_found(structure, house):
    root, crate, layers = house()
    findings = list(structure.file_findings(root, crate, (*layers, ("gone",))))
    assert findings == ["tools/check_structure.py: crate http has no gone"]
