#!/bin/sh
# Create .venv with a Python that devkit supports, or say in one line what is missing.
set -eu
python=${PYTHON:-python3}

command -v "$python" >/dev/null 2>&1 || {
    echo "devkit needs Python 3.11 or newer, and there is no $python here: sudo apt-get install python3 python3-venv" >&2
    exit 2
}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "devkit needs Python 3.11 or newer; $python is $("$python" -c 'import platform; print(platform.python_version())')." \
        "Name a newer one: make PYTHON=python3.12 ..." >&2
    exit 2
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "this Python cannot make virtual environments: sudo apt-get install python$version-venv (or python3-venv)" >&2
    exit 2
}
# An unfinished .venv, left by an interrupt, has no pip: make it anew.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    echo "==> creating .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
