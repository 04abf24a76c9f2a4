#!/bin/sh
# Prints the directory of llvm-cov and llvm-profdata that read what rustc writes, and installs them if need be:
#     tools/llvm.sh coverage
# They are those of the same LLVM: rustup's component, or else Debian's packages, since a toolchain from elsewhere has
# no component.
set -eu
cd "$(dirname "$0")/.."

component=$(rustc --print target-libdir)/../bin
version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
debian=/usr/lib/llvm-$version/bin

[ -x "$component/llvm-profdata" ] || [ -x "$debian/llvm-profdata" ] \
    || { command -v rustup >/dev/null && rustup component add llvm-tools >&2 && [ -x "$component/llvm-profdata" ]; } \
    || tools/debian-packages.sh "$1" "$debian/llvm-profdata=llvm-$version" >&2 \
    || true

for directory in "$component" "$debian"; do
    [ ! -x "$directory/llvm-profdata" ] || exec realpath "$directory"
done
echo "$1 needs the tools of LLVM $version: rustup component add llvm-tools, or apt-get install llvm-$version" >&2
exit 1
