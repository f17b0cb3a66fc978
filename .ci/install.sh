#!/bin/sh
# Install devkit, editable, with the extras named as arguments: install.sh workload dev
set -eu
extras=$(IFS=,; echo "$*")
python=.venv/bin/python
torch=$(sed -n 's/^torch==//p' .ci/constraints.txt)

# On a terminal pip's own progress is seen; a log needs only its complaints.
pip_install() {
    if [ -t 1 ]; then quiet=''; else quiet=--quiet; fi
    # Few of the thousands of modules are ever imported: these compile themselves the first time, where they may.
    if [ -z "${PYTHONDONTWRITEBYTECODE:-}" ]; then later=--no-compile; else later=''; fi
    "$python" -m pip install ${quiet:+"$quiet"} ${later:+"$later"} --constraint .ci/constraints.txt --disable-pip-version-check "$@"
}
answers() {
    "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)' "$1" 2>/dev/null
}
# Which build of torch fits this machine's driver and GPUs is what devkit plan is for.
index_for_this_machine() {
    minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    .venv/bin/devkit plan --no-resolve --torch "$torch" --python "$minor" --json 2>/dev/null |
        "$python" -c 'import json, sys; print(json.load(sys.stdin)["plan"]["torch_index"])' 2>/dev/null
}

case ,$extras, in
*,workload,*)
    pip_install --editable .
    index=$(index_for_this_machine) || index=''
    if [ -z "$index" ]; then
        echo "==> nothing fits torch $torch here (devkit plan --torch $torch says why): torch comes from the default index"
    elif answers "$index/torch/"; then
        echo "==> torch $torch comes from $index, which fits this machine"
        pip_install "torch==$torch" --index-url "$index"
    else
        echo "==> $index would fit this machine but does not answer: torch comes from the default index"
    fi
    ;;
esac
echo "==> installing devkit[$extras] into .venv (a few minutes the first time)"
pip_install --editable ".[$extras]"
