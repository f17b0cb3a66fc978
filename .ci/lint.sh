#!/bin/bash
# Every static check, each with its seconds; all of them run, and any that fails makes the whole fail.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
bin=$PWD/.venv/bin
failed=()

check() {
    local name=$1 started=$SECONDS
    shift
    if "$@"; then
        printf '==> %s: ok, %d s\n' "$name" $((SECONDS - started))
    else
        printf '==> %s: FAILED, %d s\n' "$name" $((SECONDS - started)) >&2
        failed+=("$name")
    fi
}

check "ruff" "$bin/ruff" check --quiet .
check "ruff format" "$bin/ruff" format --check --quiet .
check "mypy" "$bin/mypy"
check "layers" "$bin/lint-imports"
check "shellcheck" "$bin/shellcheck" .ci/run .ci/*.sh
check "generated files" "$bin/python" .ci/lint_generated.py
check "pages of the checks" "$bin/python" docs/generate.py --check
check "help blocks in README" "$bin/python" .ci/help_blocks.py --check

if ((${#failed[@]})); then
    echo "make lint: failed: ${failed[*]}" >&2
    exit 1
fi
echo "make lint: all checks passed"
