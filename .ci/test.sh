#!/bin/sh
# Prepare what the tests need and this machine allows, say loudly what is left out, then run them all.
set -eu
# Thousands of processes import the same modules: whoever has this set would have all of them compiled each time.
unset PYTHONDONTWRITEBYTECODE
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
    # Of the commit, so that a failure is met again; said once, for a commit meanwhile must not change it.
    DEVKIT_TURN=$(.venv/bin/python -m tests.amount)
    export DEVKIT_TURN
    # Examples that are drawn at random are others, too, and the same ones again.
    export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --hypothesis-seed=$DEVKIT_TURN"
    skip "most of what takes minutes: this commit's part is tried, DEVKIT_TURN=$DEVKIT_TURN (all with DEVKIT_LONG=1)"
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# What inherits this is the tests'. They fail where they leave anything on the machine.
DEVKIT_TEST_SESSION=$$
export DEVKIT_TEST_SESSION
.venv/bin/python -m tests.left_behind >"$logs/before"
status=0
if [ $# -gt 0 ]; then
    echo "==> pytest $*"
    .venv/bin/python -m pytest "$@" || status=$?
    .venv/bin/python -m tests.left_behind "$logs/before" || status=1
    exit "$status"
fi

# Engines share this machine's one network, so no two of these run at once. They wait for minutes where they wait at
# all, and leave the processors to commands, some of which have seconds.
engines="tests/engine"
# These start commands, servers and clusters of their own: two by two, beside the engines.
commands="tests/architecture tests/cli"
clusters="tests/cluster tests/verify"
# These import torch, which no other test should have to wait for or share a process with; a file's models are made once.
with_torch="tests/workload tests/estimate"
# Half of the thousands of others, which take milliseconds each; the other half is all that is named nowhere here. One
# process runs a half from end to end, because handing such tests out one by one costs a quarter of their time.
half="tests/render tests/export tests/facts"
beside=""
for folder in $engines $commands $clusters $with_torch $half; do beside="$beside --ignore=$folder"; done
# Those that hold a deadline against the clock on the wall: they mostly wait, and must not be kept waiting.
clock=$(grep -rl 'mark\.clock' tests --include='*.py')
# Only what nobody else wants.
idle="nice -n 19"
if command -v chrt >/dev/null 2>&1 && chrt --idle 0 true 2>/dev/null; then idle="chrt --idle 0"; fi
# The engine tests come late: what they need is fetched meanwhile. What cannot be had is for them to say.
nice -n 10 .venv/bin/python -m tests.engine.prepare >"$logs/downloads" 2>&1 &
fetching=$!
# Run pytest in the background, with what it says in a file of the first word's name.
others=""
failed=""
pytest_as() {
    log=$logs/$1
    shift
    # shellcheck disable=SC2086 # a command and its words
    $priority .venv/bin/python -m pytest -q "$@" >"$log" 2>&1 &
    others="$others ${log##*/}:$!"
}
# Run pytest in the foreground, shown as it goes and kept in a file of the first word's name.
pytest_shown() {
    log=$logs/$1
    shift
    # shellcheck disable=SC2086
    { $priority .venv/bin/python -m pytest "$@" 2>&1 && echo 0 >"$log.status"; } | tee "$log"
    [ -e "$log.status" ] || failed="$failed ${log##*/}"
}
# shellcheck disable=SC2317,SC2329 # called by the trap
interrupted() {
    for each in $others $fetching; do
        each=${each#*:}
        pkill -P "$each" || :
        kill "$each" || :
    done 2>/dev/null
    exit 130
}
trap interrupted INT TERM
priority=$idle
# All at once: each waits now and then, and then another one goes on.
# shellcheck disable=SC2086 # folder names without spaces, meant as words of their own
{
    pytest_as torch --durations=12 -n auto --dist loadfile $with_torch
    pytest_as half --durations=12 -m 'not clock' $half
    pytest_as rest --durations=12 -m 'not clock' $beside tests
}
echo "==> pytest, against the clock"
priority=""
# shellcheck disable=SC2086
{
    pytest_shown clock -q -n 3 --dist worksteal -m clock $clock
    pytest_as commands --durations=20 $commands
    pytest_as clusters --durations=20 $clusters
}
echo "==> pytest, one by one: $engines; beside it: $commands; $clusters"
priority="nice -n 10"
pytest_shown engines --durations=25 $engines
for each in $others; do
    wait "${each#*:}" || failed="$failed ${each%%:*}"
done
cat "$logs/commands" "$logs/clusters"
echo "==> pytest, side by side, meanwhile: all the others"
wait "$fetching" || echo "==> downloads ahead of the tests failed:"
cat "$logs/downloads" "$logs/torch" "$logs/half" "$logs/rest"
# Said again at the end, where whoever is shown only the end of this finds it.
for each in $failed; do
    status=1
    echo "==> failed: $each"
    awk '/^=+ (FAILURES|ERRORS) =+$/ { found = 1 } found; END { exit !found }' "$logs/$each" || tail -n 40 "$logs/$each"
done
.venv/bin/python -m tests.left_behind "$logs/before" || status=1
exit "$status"
