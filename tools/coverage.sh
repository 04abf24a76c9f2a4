#!/bin/sh
# Prints how many lines of each folder and file of the Rust crates the Rust tests run, without those of the tests
# themselves. Arguments go to `cargo llvm-cov`.
set -eu

fail() {
    echo "coverage: $1" >&2
    exit 1
}

cargo llvm-cov --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-llvm-cov \
    || fail "cargo-llvm-cov is missing and could not be installed: cargo install --locked cargo-llvm-cov"

# LLVM_COV and LLVM_PROFDATA name others.
if [ -z "${LLVM_COV:-}" ]; then
    llvm=$(tools/llvm.sh coverage)
    export LLVM_COV="$llvm/llvm-cov" LLVM_PROFDATA="$llvm/llvm-profdata"
fi

mkdir -p target
cargo llvm-cov --locked --quiet --workspace --exclude tailrace-wsgi --lcov --output-path target/coverage.lcov \
    --ignore-filename-regex '/(tests|testing|harness)(/|\.rs)' "$@"
.venv/bin/python tools/coverage_table.py target/coverage.lcov crates
