#!/bin/sh
# Type-checks all crates for the targets of releases that this machine is not. Each needs its standard library, which
# rustup installs. A target without one is named, and is a failure.
set -eu

# Its headers and a library for this machine: nothing is linked.
"$(dirname "$0")"/debian-packages.sh "the check" pkg-config=pkg-config /usr/include/zstd.h=libzstd-dev
export ZSTD_SYS_USE_PKG_CONFIG=1 PKG_CONFIG_ALLOW_CROSS=1
targets='aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl'
# A library that Python loads is linked dynamically, also with musl.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS='-C target-feature=-crt-static'
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS='-C target-feature=-crt-static'
# There is no Python of the other machine to ask.
PYO3_CROSS_PYTHON_VERSION=$("${PYO3_PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
export PYO3_CROSS_PYTHON_VERSION

sysroot=$(rustc --print sysroot)

without_library() {
    for target in $targets; do
        [ -d "$sysroot/lib/rustlib/$target/lib" ] || printf '%s ' "$target"
    done
}

missing=$(without_library)
if [ -n "$missing" ] && command -v rustup >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # a list of names
    rustup target add $missing || true
    missing=$(without_library)
fi

options=
for target in $targets; do
    case " $missing" in
        *" $target "*) ;;
        *) options="$options --target $target" ;;
    esac
done
if [ -n "$options" ]; then
    # shellcheck disable=SC2086 # a list of options
    cargo check --locked --quiet --workspace --target-dir target/cross $options
    echo "checked:$options"
fi
if [ -n "$missing" ]; then
    echo "cross: not checked, since their standard library is missing: ${missing% }; rustup target add ${missing% }" >&2
    exit 1
fi
