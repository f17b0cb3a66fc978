#!/bin/bash
# Every static check, each with its seconds, side by side; all of them run, and any that fails makes the whole fail.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
bin=$PWD/.venv/bin
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
names=()

# What a check says comes whole and in this order, however long each takes.
check() {
    local name=$1 number=${#names[@]} started=$SECONDS status=0
    names+=("$name")
    shift
    {
        "$@" >"$said/$number" 2>&1 || status=$?
        echo "$status $((SECONDS - started))" >"$said/$number.ended"
    } &
}

# Without torch its types are unknown, and so is whatever is made of them.
if "$bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    check "mypy" "$bin/mypy"
else
    echo "==> torch is not installed: mypy checks what is made of its types less strictly (make test installs it)" >&2
    check "mypy, without torch" "$bin/mypy" --ignore-missing-imports --no-warn-return-any --no-warn-unused-ignores \
        --allow-subclassing-any --allow-untyped-decorators
fi
check "generated files" "$bin/python" .ci/lint_generated.py
check "wording" "$bin/python" .ci/lint_words.py
check "ruff" "$bin/ruff" check --quiet .
check "ruff format" "$bin/ruff" format --check --quiet .
check "layers" "$bin/lint-imports"
check "shellcheck" "$bin/shellcheck" .ci/run .ci/*.sh
wait

failed=()
for number in "${!names[@]}"; do
    read -r status seconds <"$said/$number.ended" || status=killed seconds='?'
    cat "$said/$number"
    if [[ $status == 0 ]]; then
        printf '==> %s: ok, %s s\n' "${names[number]}" "$seconds"
    else
        printf '==> %s: FAILED, %s s\n' "${names[number]}" "$seconds" >&2
        failed+=("${names[number]}")
    fi
done
if ((${#failed[@]})); then
    echo "make lint: failed: ${failed[*]}" >&2
    exit 1
fi
echo "make lint: all checks passed"
