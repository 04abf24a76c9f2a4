#!/bin/sh
# Runs the Python tests: four processes share them, since many tests wait more than they compute. With arguments, which
# go to pytest, one process runs what they select. RUN_WITH: what runs pytest, in place of Python.
set -eu
cd "$(dirname "$0")/.."
# Compiling all tests takes each of the processes a quarter of a minute.
unset PYTHONDONTWRITEBYTECODE
[ $# -gt 0 ] || set -- -n 4 --dist worksteal --max-worker-restart 0
exec .venv/bin/${RUN_WITH:-python} -m pytest "$@"
