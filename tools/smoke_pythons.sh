#!/bin/sh
# Builds a wheel for each Python version named, installs it into a fresh environment and runs tests/smoke.py there:
#     tools/smoke_pythons.sh 3.10 3.12 3.13
# A version is looked for as python3.X on PATH and under pyenv. One that is missing is a failure on CI (CI=true), a
# warning elsewhere. The wheels are release builds, but without link-time optimization, which would take longer than all
# the rest: all other tests run what users get.
set -eu

export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
work=build/smoke
status=0

interpreter() {
    # A pyenv shim exists for versions that are not selected, and fails: try, do not just look.
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
}

for version in "$@"; do
    python=$(interpreter "$version")
    if [ -z "$python" ]; then
        echo "Python $version: not found on PATH or under pyenv" >&2
        [ "${CI:-}" != true ] || status=1
        continue
    fi
    rm -rf "${work:?}/$version"
    mkdir -p "$work/$version"
    echo "Python $version ($python)" >&2
    .venv/bin/maturin build --quiet --release --locked --interpreter "$python" --target-dir target/smoke --out "$work/$version"
    "$python" -m venv "$work/$version/venv"
    "$work/$version/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$work/$version"/*.whl
    # From an empty directory, so that the installed package is what runs and not the one in the repository.
    root=$PWD
    mkdir "$work/$version/run"
    (cd "$work/$version/run" && "$root/$work/$version/venv/bin/python" "$root/tests/smoke.py" 2>&1) ||
        { echo "Python $version: tests/smoke.py failed" >&2; status=1; }
done
exit $status
