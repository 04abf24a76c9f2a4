"""Prints the requirements of one extra of pyproject.toml, so that they can be installed without building Tailrace.

python tools/extra.py test | pip install -r /dev/stdin
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

document = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
print(*document["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
