#!/bin/sh
# Prepare what the tests need and this machine allows, say loudly what is left out, then run them all.
set -eu
skip() { echo "==> LEFT OUT: $*" >&2; }

if [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ]; then
    skip "the tests on real container engines need root on Linux (try: sudo make test)"
elif ! command -v npm >/dev/null 2>&1; then
    skip "the tests with the dev container CLI need npm"
fi
if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1; then
    skip "the tests with the NVML stub need a C compiler (apt-get install gcc libc6-dev)"
fi
if ! command -v chromium >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
    skip "the pictures of the report's page need a browser (apt-get install chromium)"
fi
for shell in bash busybox dash ksh mksh yash; do
    command -v "$shell" >/dev/null 2>&1 || skip "the generated scripts are not tried in $shell (apt-get install $shell)"
done
if [ "${DEVKIT_LONG:-}" != 1 ]; then
    skip "bundles, locks, Podman, notebooks, monitoring, Templates, repairs and JetBrains's image on real engines" \
        "and most cases of the largest suites (DEVKIT_LONG=1 make test)"
fi
if [ $# -gt 0 ]; then
    echo "==> pytest $*"
    exec .venv/bin/python -m pytest "$@"
fi

# These start engines and commands of their own: one after the other, while the others take what they leave of the
# processors. Everybody's output comes whole, the closing lines last.
one_by_one="tests/architecture tests/cli tests/cluster tests/engine tests/verify"
# These import torch, which no other test should have to wait for or share a process with; a file's models are made once.
with_torch="tests/workload tests/estimate"
status=0
beside=""
for folder in $one_by_one $with_torch; do beside="$beside --ignore=$folder"; done
# Those that hold a deadline against the clock on the wall: they mostly wait, and must not be kept waiting.
clock=$(grep -rl 'mark\.clock' tests --include='*.py')
# Only what nobody else wants.
idle="nice -n 19"
if command -v chrt >/dev/null 2>&1 && chrt --idle 0 true 2>/dev/null; then idle="chrt --idle 0"; fi
log=$(mktemp)
downloads=$(mktemp)
trap 'rm -f "$log" "$downloads"' EXIT
# The engine tests come late: what they need is fetched meanwhile. What cannot be had is for them to say.
.venv/bin/python -m tests.engine.prepare >"$downloads" 2>&1 &
fetching=$!
side_by_side() {
    ended=0
    # shellcheck disable=SC2086 # folder names without spaces, meant as words of their own
    $idle .venv/bin/python -m pytest -q --durations=12 -n auto -m 'not clock' $beside tests || ended=$?
    # shellcheck disable=SC2086
    $idle .venv/bin/python -m pytest -q --durations=12 -n auto --dist loadfile $with_torch || ended=$?
    return "$ended"
}
side_by_side >"$log" 2>&1 &
others=$!
trap 'pkill -P "$others"; kill "$others" "$fetching" 2>/dev/null; exit 130' INT TERM
echo "==> pytest, against the clock"
# shellcheck disable=SC2086
.venv/bin/python -m pytest -q -n 2 -m clock $clock || status=$?
echo "==> pytest, one by one: $one_by_one"
# shellcheck disable=SC2086
.venv/bin/python -m pytest --durations=40 $one_by_one || status=$?
echo "==> pytest, side by side, meanwhile: all but $one_by_one"
wait "$others" || status=$?
wait "$fetching" || echo "==> downloads ahead of the tests failed:"
cat "$downloads" "$log"
exit "$status"
