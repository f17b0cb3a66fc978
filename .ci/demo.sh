#!/bin/sh
# The main job on this machine: look, plan and write a dev container, prove fine-tuning, then tune a real model.
# Its last line says in plain words what was proven.
set -eu
devkit=$PWD/.venv/bin/devkit
project=.demo/quickstart

echo "==> devkit doctor"
status=0
"$devkit" doctor || status=$?
case $status in
0) ;;
1) echo "==> the doctor found problems, listed above; the proof below runs on what this machine can do today" ;;
*) exit "$status" ;;
esac

echo "==> devkit init $project (a fresh copy of examples/quickstart)"
rm -rf "$project"
mkdir -p .demo
cp -R examples/quickstart "$project"
"$devkit" init "$project" --yes

echo "==> devkit verify --here"
"$devkit" verify --here --output .demo/verify.json

echo "==> devkit try"
if ! "$devkit" try 2>.demo/try.log; then
    cat .demo/try.log >&2
    # A package with other bytes than expected is an error; an index that does not answer is not.
    grep -q "no network" .demo/try.log || exit 1
    echo "==> left out, as the package index does not answer: devkit try. With a network, run make demo again."
    exit 0
fi
echo "==> a real model learned the keeper's name on this machine"
