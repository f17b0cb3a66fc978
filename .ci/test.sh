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
if [ $# -gt 0 ]; then
    echo "==> pytest $*"
    exec .venv/bin/python -m pytest "$@"
fi

# These start engines, commands and trainings of their own, and some watch the clock: one after the other.
one_by_one="tests/architecture tests/cli tests/engine tests/verify tests/workload"
status=0
beside=""
for folder in $one_by_one; do beside="$beside --ignore=$folder"; done
echo "==> pytest, side by side: all but $one_by_one"
# shellcheck disable=SC2086 # folder names without spaces, meant as words of their own
.venv/bin/python -m pytest -q -n auto $beside tests || status=$?
echo "==> pytest, one by one: $one_by_one"
# shellcheck disable=SC2086
.venv/bin/python -m pytest $one_by_one || status=$?
exit "$status"
