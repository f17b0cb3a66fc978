#!/bin/sh
# Install devkit, editable, with the extras named as arguments: install.sh workload dev
set -eu
extras=$(IFS=,; echo "$*")
cpu_index=https://download.pytorch.org/whl/cpu
set -- --constraint .ci/constraints.txt --disable-pip-version-check

has_nvidia_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }
answers() {
    .venv/bin/python -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)' "$1" 2>/dev/null
}

case ,$extras, in
*,workload,*)
    if has_nvidia_gpu; then
        echo "==> an NVIDIA GPU is here: torch comes with CUDA, from the default index"
    elif answers "$cpu_index/torch/"; then
        echo "==> no NVIDIA GPU here: torch comes from its CPU index, a tenth of the size"
        set -- "$@" --extra-index-url "$cpu_index"
    else
        echo "==> no NVIDIA GPU here, and the CPU index of torch does not answer: torch comes from the default index"
    fi
    ;;
esac
echo "==> installing devkit[$extras] into .venv (a few minutes the first time)"
# On a terminal pip's own progress is seen; a log needs only its complaints.
[ -t 1 ] || set -- --quiet "$@"
.venv/bin/python -m pip install "$@" --editable ".[$extras]"
