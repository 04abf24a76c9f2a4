"""The configurations of deploy/, changed for one test: addresses and paths are replaced, and nothing else."""

import re
from collections.abc import Mapping
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def deployed(name: str, changes: Mapping[str, str]) -> str:
    """The text of a file, in which each key of `changes` is replaced by its value, wherever it stands.

    Fails when a key does not occur, so that a file and its test change together.
    """
    text = (DEPLOY / name).read_text()
    missing = [key for key in changes if key not in text]
    assert not missing, f"deploy/{name} has no {missing}"
    # All at once, so that no value is changed again.
    found = "|".join(map(re.escape, sorted(changes, key=len, reverse=True)))
    return re.sub(found, lambda match: changes[match[0]], text) if changes else text
