#!/bin/bash
# Run one tier of the tests, test.sh test|all|nightly, or what is named behind it of that tier.
set -uo pipefail
# Thousands of processes import the same modules, and with this set each would compile them.
unset PYTHONDONTWRITEBYTECODE
tier=$1
shift
pytest() { .venv/bin/python -m pytest "$@"; }
skip() { echo "==> LEFT OUT: $*" >&2; }

# What carries this mark, and what lies in this folder, is the tests' own: they fail where they leave anything.
# Its name is short because the path of a socket has at most 107 bytes.
scratch=$(mktemp -d /tmp/dk-XXXXXX)
chmod 755 "$scratch" # other users' containers look into it
trap 'rm -rf "$scratch"' EXIT
export DEVKIT_TEST_SESSION=$$ TMPDIR=$scratch/t DEVKIT_TEST_TMPDIR=$scratch/t
mkdir "$TMPDIR"
.venv/bin/python -m tests.left_behind >"$scratch/before"

status=0
case $tier in
test)
    pytest -q -n 2 --dist worksteal --durations=10 -m "not full and not nightly" "${@:-tests}" || status=$?
    ;;
all)
    if [[ $(uname -s) != Linux || $EUID != 0 ]]; then
        skip "the tests on real container engines and clusters need root on Linux (try: sudo make test-all)"
    fi
    for needed in npm:"the dev container CLI" cc:"the NVML stub" chromium:"pictures of the report's page" slurmctld:"Slurm"; do
        command -v "${needed%%:*}" >/dev/null 2>&1 || skip "${needed%%:*} is not here: tests of ${needed#*:}"
    done
    for shell in bash busybox dash ksh mksh yash; do
        command -v "$shell" >/dev/null 2>&1 || skip "the generated scripts are not tried in $shell"
    done
    if (($#)); then
        pytest -q -n 2 --dist worksteal --durations=25 -m "full and not nightly" "$@" || status=$?
    else
        # Engines share this machine's one network and mostly wait: one at a time, beside everything else.
        pytest -q --durations=25 -m "full and not nightly" tests/engine tests/cluster >"$scratch/engines" 2>&1 &
        engines=$!
        pytest -q -n 2 --dist worksteal --durations=25 -m "full and not nightly" --ignore=tests/engine --ignore=tests/cluster tests || status=$?
        wait "$engines" || status=$?
        cat "$scratch/engines"
    fi
    ;;
nightly)
    pytest -q --durations=25 -m nightly "${@:-tests}" || status=$?
    ;;
esac
.venv/bin/python -m tests.left_behind "$scratch/before" || status=1
exit "$status"
