#!/bin/sh
# Runs the unit tests of crates/wsgi, which start an interpreter of their own: they need Python as a shared library.
# A Python without one is not at fault, so this says what was left out instead of failing.
set -eu
cd "$(dirname "$0")/.."
python=${PYO3_PYTHON:-.venv/bin/python}
library=$("$python" -c 'import os, sysconfig as s
path = os.path.join(s.get_config_var("LIBDIR") or "", s.get_config_var("LDLIBRARY") or "")
print(os.path.dirname(path) if path.endswith(".so") and os.path.exists(path) else "")')
if [ -z "$library" ]; then
    echo "crates/wsgi: unit tests left out, $python has no shared library to link them against" >&2
    exit 0
fi
LD_LIBRARY_PATH="$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec cargo test --locked --quiet --profile ci -p tailrace-wsgi
