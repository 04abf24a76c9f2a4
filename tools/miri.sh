#!/bin/sh
# Runs tests under Miri, which finds undefined behaviour: the HTTP crate, and the modules of the server crate that
# need no socket, file or other process, none of which Miri has.
set -eu

cargo +nightly miri --version >/dev/null 2>&1 \
    || rustup toolchain install --profile minimal --component miri --component rust-src nightly \
    || { echo "miri: it needs rustup with a nightly toolchain: rustup toolchain install nightly --component miri rust-src" >&2; exit 1; }

# Tests read the clock. Fewer random cases: each takes about a thousand times as long.
export MIRIFLAGS=-Zmiri-disable-isolation
export PROPTEST_CASES=4
cargo +nightly miri test --locked --quiet --target-dir target/miri -p tailrace-http
cargo +nightly miri test --locked --quiet --target-dir target/miri -p tailrace-server --lib -- \
    request::memory response::coalescing response::segments response::payload response::write_plan dispatch::admission connection::timers \
    connection::claim observe::log_format
