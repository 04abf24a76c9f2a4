"""tools/training.py, whose use of the core decides how wheels are compiled."""

import importlib
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def test_the_training_uses_the_core_and_gets_what_it_asks_for():
    ran = subprocess.run([sys.executable, TOOLS / "training.py"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line.split(":")[0] for line in ran.stdout.splitlines()] == ["training"] * 4


def test_a_build_without_its_counts_is_noticed(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    profile_guided = importlib.import_module("profile_guided")
    said = "warning: tailrace_os.79-cgu.0: no profile data available for function _RNvXsK_fmt Hash = 742\n"
    assert profile_guided.missing(said * 3 + "warning: unused variable\n") == 3
