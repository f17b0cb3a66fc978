#!/bin/sh
# The main job on this machine: look, plan and write a dev container, prove fine-tuning. Ends with one plain line.
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

# Its last line says in plain words what was proven, and is the demo's.
echo "==> devkit verify --here"
exec "$devkit" verify --here --output .demo/verify.json
