#!/bin/sh
# Prints how many lines of each file of the Rust crates the Rust tests run, without those of the tests themselves.
#
# rustup's llvm-tools component would do, but a toolchain from elsewhere may have none: Debian's tools of the same LLVM version
# (or a later one) read its profiles as well. LLVM_COV and LLVM_PROFDATA name others.
set -eu
cargo llvm-cov --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-llvm-cov
version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
if [ -z "${LLVM_COV:-}" ] && [ ! -x "$(rustc --print target-libdir)/../bin/llvm-cov" ]; then
    tools/debian-packages.sh 'coverage' "llvm-cov-$version=llvm-$version"
    export LLVM_COV="llvm-cov-$version" LLVM_PROFDATA="llvm-profdata-$version"
    LLVM_COV=$(command -v "$LLVM_COV") LLVM_PROFDATA=$(command -v "$LLVM_PROFDATA")
fi
cargo llvm-cov --locked --quiet --workspace --exclude tailrace-wsgi --summary-only \
    --ignore-filename-regex '/(tests|testing|harness)(/|\.rs)' "$@"
