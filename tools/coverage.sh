#!/bin/sh
# Prints how many lines of each folder and file of the Rust crates the Rust tests run, without those of the tests
# themselves. Arguments go to `cargo llvm-cov`.
#
# rustup's llvm-tools component would do, but a toolchain from elsewhere may have none: Debian's tools of the same LLVM
# version (or a later one) read its profiles as well. LLVM_COV and LLVM_PROFDATA name others.
set -eu

fail() {
    echo "coverage: $1" >&2
    exit 1
}

cargo llvm-cov --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-llvm-cov \
    || fail "cargo-llvm-cov is missing and could not be installed: cargo install --locked cargo-llvm-cov"

version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
[ -n "$version" ] || fail "rustc -vV does not name its version of LLVM; set LLVM_COV and LLVM_PROFDATA"
missing_tool() {
    for tool in llvm-cov llvm-profdata; do
        command -v "$tool-$version" >/dev/null || { echo "$tool-$version"; return; }
    done
}

has_component() {
    [ -x "$(rustc --print target-libdir)/../bin/llvm-cov" ]
}

if [ -z "${LLVM_COV:-}" ] && ! has_component; then
    tools/debian-packages.sh 'coverage' "llvm-cov-$version=llvm-$version" || true
    if [ -z "$(missing_tool)" ]; then
        LLVM_COV=$(command -v "llvm-cov-$version")
        LLVM_PROFDATA=$(command -v "llvm-profdata-$version")
        export LLVM_COV LLVM_PROFDATA
    else
        # A distribution rarely has an LLVM as new as that of rustup's compiler; rustup has the very one.
        ! command -v rustup >/dev/null || rustup component add llvm-tools || true
        has_component || fail "$(missing_tool) is missing: apt-get install llvm-$version, or \
rustup component add llvm-tools, or set LLVM_COV and LLVM_PROFDATA to tools of LLVM $version or later"
    fi
fi

mkdir -p target
cargo llvm-cov --locked --quiet --workspace --exclude tailrace-wsgi --lcov --output-path target/coverage.lcov \
    --ignore-filename-regex '/(tests|testing|harness)(/|\.rs)' "$@"
.venv/bin/python tools/coverage_table.py target/coverage.lcov crates
