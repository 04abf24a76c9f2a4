#!/bin/sh
# Installs the server or one package into a new environment, without the others, and runs its tests.
#
#     tools/alone.sh server | tools | compare [ARGUMENTS OF PYTEST]
set -eu
cd "$(dirname "$0")/.."
name=$1
shift
folder=$PWD/target/alone
rm -rf "$folder/$name" "$folder/wheels"
.venv/bin/maturin build --quiet --profile ci --locked --out "$folder/wheels"
.venv/bin/python -m venv "$folder/$name"
pip="$folder/$name/bin/pip --disable-pip-version-check install --quiet"
$pip --upgrade pip
$pip "$folder"/wheels/*.whl
if [ "$name" = server ]; then
    paths=tests
    tests='tests --ignore tests/docs'
else
    $pip "./packages/$name"
    paths="tests packages/$name packages/$name/tests"
    tests=packages/$name/tests
fi
$pip --group test
# The program, since `python -m pytest` would import the sources of the server from here.
[ $# -gt 0 ] || set -- -n 4 --dist worksteal --max-worker-restart 0
exec "$folder/$name/bin/pytest" --override-ini "pythonpath=$paths" $tests "$@"
