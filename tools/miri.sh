#!/bin/sh
# Runs tests of the server crate under Miri, which finds leaks, races that the memory model permits, and undefined
# behaviour, here that of the libraries. Only modules that need no socket, file or other process: Miri has none of these. The HTTP crate is left out:
# it has no `unsafe` and no threads, so there is nothing for Miri to find.
set -eu

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    rustup toolchain install --profile minimal --component miri --component rust-src nightly || {
        echo "miri: it needs rustup: rustup toolchain install --component miri --component rust-src nightly" >&2
        exit 1
    }
fi

# Tests read the clock.
export MIRIFLAGS=-Zmiri-disable-isolation
cargo +nightly miri test --locked --quiet --target-dir target/miri -p tailrace-server --no-default-features --lib -- \
    request::memory response::coalescing response::segments dispatch::admission connection::timers \
    executor::threads::leadership connection::runner
