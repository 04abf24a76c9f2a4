#!/bin/sh
# Prints how many lines of each folder and file of the packages the Python tests run, in the tests' processes and in those
# of the servers. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
folder=$PWD/target/coverage-python
rm -rf "$folder"
mkdir -p "$folder"
export COVERAGE_RCFILE="$folder/settings"
cat >"$COVERAGE_RCFILE" <<END
[run]
source =
    $PWD/tailrace
    $PWD/packages/compare/tailrace_compare
    $PWD/packages/tools/tailrace_tools
data_file = $folder/data
parallel = true
patch = subprocess, _exit
END
status=0
RUN_WITH='coverage run' tools/test_python.sh "$@" || status=$?
.venv/bin/coverage combine --quiet
.venv/bin/coverage lcov --quiet -o "$folder/lcov"
.venv/bin/python tools/coverage_table.py "$folder/lcov" .
exit $status
