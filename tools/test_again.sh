#!/bin/sh
# For CI, after tools/test_python.sh failed: runs the failed tests again, one by one, where they are three at most. One
# that passes now is unsteady: it is named, and is to be fixed. One that fails again fails the run, and so does a run
# that has not come to its end.
set -eu
[ ! -e .pytest_cache/unfinished ] || exit 1
failed=.pytest_cache/v/cache/lastfailed
count=$(.venv/bin/python -c "import json, sys; print(len(json.load(open(sys.argv[1]))))" "$failed" 2>/dev/null || echo 0)
[ "$count" -ge 1 ] && [ "$count" -le 3 ] || exit 1
.venv/bin/python -c "import json, sys; [print('Unsteady, if it passes now:', name) for name in json.load(open(sys.argv[1]))]" "$failed"
.venv/bin/python -m pytest --last-failed --last-failed-no-failures=none
