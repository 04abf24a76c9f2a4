#!/bin/sh
# Makes .venv with a suitable Python:  tools/venv.sh [PYTHON]
# PYTHON is a command; without one, the newest python3 that Tailrace supports and that runs here is taken.
set -eu

suitable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10) or sys.platform != "linux")' 2>/dev/null
}

python=${1:-}
if [ -z "$python" ]; then
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if suitable "$candidate"; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ] || ! suitable "$python"; then
    echo "Tailrace needs Python 3.10 or newer on Linux; install it, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
fi

command -v cargo >/dev/null 2>&1 || {
    echo "Tailrace needs cargo to build its core: https://rustup.rs" >&2
    exit 1
}
"$python" tools/build_backend.py

# Debian packs venv apart from Python, the linker apart from Rust, and what every program is linked with apart from both.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    tools/debian-packages.sh "Python's virtual environments" "/usr/lib/python$version/ensurepip=python$version-venv"
fi
tools/debian-packages.sh 'the build of the core' cc=gcc /usr/include/stdlib.h=libc6-dev

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' # --group
