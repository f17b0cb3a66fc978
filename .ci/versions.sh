#!/bin/bash
# The smoke tests with the newest releases, with the lowest that pyproject.toml declares, and with the newest Python here.
# Each says what it took; where one fails, the package is looked for whose locked version makes it pass.
set -uo pipefail
unset PYTHONDONTWRITEBYTECODE
lock=$PWD/.ci/constraints.txt
torch=$(sed -n 's/^torch==//p' "$lock")
root=${DEVKIT_VERSIONS:-build/versions}
smoke=(tests/cli/test_main.py::test_every_command_loads_and_has_help tests/doctor/test_machines.py
    tests/probe/test_documents.py tests/solver/test_solve.py tests/render/test_examples.py tests/export/test_task_builder.py)
with_torch=(tests/workload/finetune/test_loop.py tests/workload/generation/test_decoding.py)
.venv/bin/python -c 'import uv' 2>/dev/null || { sh .ci/venv.sh && sh .ci/install.sh "" lint; } || exit 1
uv=$PWD/.venv/bin/uv
failed=()

# stage NAME PYTHON EXTRAS UV-OPTION…: an environment of its own, then the smoke tests in it.
stage() {
    local name=$1 python=$2 extras=$3 venv=$root/$1 tests=("${smoke[@]}") held=() status=0
    shift 3
    echo "=== $name: $("$python" --version)"
    rm -rf "$venv"
    "$uv" venv --quiet --seed --python "$python" "$venv" || { failed+=("$name"); return; }
    if [[ $extras == *workload* ]]; then
        # torch's builds are gigabytes each: the locked one stands in for them, from wherever pip finds it.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "torch==$torch" || { failed+=("$name"); return; }
        echo "torch==$torch" >"$venv/held.txt"
        held=(--constraints "$venv/held.txt")
        tests+=("${with_torch[@]}")
    fi
    "$uv" pip install --quiet --python "$venv/bin/python" "${held[@]}" "$@" ".[$extras]" 'pytest>=8.3' 'hypothesis>=6.100' \
        'jsonschema>=4.23' || { failed+=("$name"); return; }
    "$uv" pip list --quiet --python "$venv/bin/python" --format freeze >"$venv/took.txt"
    echo "took: $(direct | grep -ixFf - <(sed 's/==.*//' "$venv/took.txt") | while read -r each; do grep -i "^$each==" "$venv/took.txt"; done | paste -sd' ')"
    run_smoke "$venv" "${tests[@]}" || { status=$?; name_the_package "$venv" "${tests[@]}"; }
    ((status)) && failed+=("$name")
}
run_smoke() {
    local venv=$1
    shift
    "$venv/bin/python" -m pytest -q -p no:cacheprovider -m "not full and not nightly" "$@" >"$venv/said.txt" 2>&1
    local status=$?
    tail -n 1 "$venv/said.txt"
    return "$status"
}
# The packages that pyproject.toml itself names.
direct() { .venv/bin/python -c '
import re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
print("\n".join(sorted({re.split(r"[^\w.-]", each)[0] for each in named})))'; }
name_the_package() {
    local venv=$1 name took locked
    grep -E '^(FAILED|ERROR|E  )' "$venv/said.txt" | head -n 20
    while read -r name; do
        took=$(grep -i "^$name==" "$venv/took.txt")
        locked=$(sed -n "s/^\($name==[^ ;]*\).*/\1/Ip" "$lock" | head -n 1)
        [[ -z $took || -z $locked || ${took,,} == "${locked,,}" || $name == torch ]] && continue
        "$uv" pip install --quiet --python "$venv/bin/python" "$locked" || continue
        if run_smoke "$venv" "${@:2}" >/dev/null; then
            echo "==> $took breaks the smoke tests; with $locked they pass"
            return
        fi
        "$uv" pip install --quiet --python "$venv/bin/python" "$took"
    done < <(direct)
    echo "==> no single package of pyproject.toml is the cause"
}

python311=$(.venv/bin/python -c 'import sys; print(sys.executable)')
stage newest "$python311" workload,mcp --upgrade
stage lowest "$python311" workload,mcp --resolution lowest-direct
# Those that uv knows, and pyenv's, which it does not look for.
newest=$({
    "$uv" python list --only-installed --output-format json 2>/dev/null | grep -o '"path": *"[^"]*"' | cut -d'"' -f4
    ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python 2>/dev/null
} | while read -r each; do
    "$each" -c 'import sys; sys.version_info > (3, 12) and print("%d.%d.%d" % sys.version_info[:3], sys.executable)' 2>/dev/null
done | sort -V | tail -n 1 | cut -d' ' -f2)
if [[ -n $newest ]]; then
    # Without the workload: torch for another Python is another download of gigabytes.
    stage newest-python "$newest" mcp --upgrade
else
    echo "==> LEFT OUT: no Python newer than $("$python311" --version) is installed here" >&2
fi
if ((${#failed[@]})); then
    echo "make test-versions: failed: ${failed[*]}" >&2
    exit 1
fi
echo "make test-versions: all passed"
