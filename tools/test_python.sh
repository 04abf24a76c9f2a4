#!/bin/sh
# Runs the Python tests: four processes share them, file by file, since most tests wait more than they compute. With
# arguments, which go to pytest, one process runs what they select.
set -u
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- -n 4 --dist loadfile --max-worker-restart 0
# For tools/test_again.sh: the failures of a run that did not come to its end are not all there are.
unfinished=.pytest_cache/unfinished
mkdir -p .pytest_cache
touch $unfinished
.venv/bin/python -m pytest "$@"
status=$?
# 1: tests have failed. More: interrupted, or an error of pytest's own.
[ $status -gt 1 ] || rm $unfinished
exit $status
