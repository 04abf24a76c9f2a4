#!/bin/sh
# Mutation testing: changes the code in one small way at a time and prints each change that no test notices. It takes
# hours; all results are in target/mutants.
#
# Covers all of crates/http, a sample of the engine's decisions (SAMPLE=0/4 is every fourth mutant, 0/1 all of them),
# and the master's plan. .cargo/mutants.toml lists the mutants that no test can notice, each with its reason.
set -eu
cd "$(dirname "$0")/.."

results=$PWD/target/mutants
cargo mutants --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-mutants
mkdir -p "$results"
# A mutant that loops may also allocate (KiB).
ulimit -v 6000000

status=0
cargo mutants --package tailrace-http --timeout 20 --output "$results/http" || status=1
# Only the unit tests: those over sockets would take minutes for each mutant.
cargo mutants --shard "${SAMPLE:-0/4}" --sharding round-robin --timeout 60 --output "$results/server" \
    --cargo-test-arg=--lib \
    --file crates/server/src/connection/state.rs --file crates/server/src/response/outbox.rs \
    --file crates/server/src/response/send_queue.rs --file crates/server/src/dispatch/admission.rs || status=1

# cosmic-ray changes the files in place: it gets a copy.
rm -rf "$results/plan"
mkdir -p "$results/plan/tree"
git ls-files -z tailrace tests pytest.ini pyproject.toml | xargs -0 cp --parents --target-directory "$results/plan/tree"
cp tailrace/_tailrace*.so "$results/plan/tree/tailrace/"
cat >"$results/plan/session.toml" <<END
[cosmic-ray]
module-path = "tailrace/master/plan.py"
timeout = 30.0
excluded-modules = []
test-command = "$PWD/.venv/bin/python -m pytest -x -q -p no:cacheprovider tests/package/test_plan.py"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*"]
END
session=$results/plan/session.sqlite
bin=$PWD/.venv/bin
cd "$results/plan/tree"
export PYTHONPATH="$PWD"
"$bin/cosmic-ray" init ../session.toml "$session"
# These only occur in annotations. What else survives, 22 of 649, no test can notice: a dataclass that is not frozen, a
# comparison that equals another one for the values that occur, a bound of an exponent whose result has a bound.
"$bin/cr-filter-operators" "$session" ../session.toml
"$bin/cosmic-ray" baseline ../session.toml
"$bin/cosmic-ray" exec ../session.toml "$session"
"$bin/cr-report" --show-diff --surviving-only "$session"
"$bin/cr-rate" --fail-over 5 "$session" || status=1
exit $status
