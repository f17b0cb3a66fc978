#!/bin/sh
# Write .ci/constraints.txt anew: one version of every package that development installs, with hashes. UPGRADE=no keeps those it has.
set -eu
uv=.venv/bin/uv
lock=.ci/constraints.txt
torch=$(sed -n 's/^torch==//p' "$lock")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Which build of torch is installed is this machine's: its version is locked, its file is not, nor the CUDA libraries that
# some builds need and a machine without a GPU must not download.
cat >"$scratch/uv.toml" <<TOML
[[dependency-metadata]]
name = "torch"
version = "$torch"
requires-dist = ["filelock", "typing-extensions>=4.10", "setuptools>=77", "sympy>=1.13.3", "networkx>=2.5.1", "jinja2", "fsspec>=0.8.5"]
TOML
if [ "${UPGRADE:-yes}" = yes ]; then upgrade=--upgrade; else upgrade=''; fi
echo "torch==$torch" >"$scratch/torch.txt"
cp "$lock" "$scratch/locked.txt"
# shellcheck disable=SC2086 # no word where nothing is upgraded
"$uv" pip compile --quiet --config-file "$scratch/uv.toml" --universal --python-version 3.11 --generate-hashes $upgrade \
    --no-emit-package torch --no-annotate --no-header --constraints "$scratch/torch.txt" --output-file "$scratch/locked.txt" \
    --all-extras --group test --group audit --group docs pyproject.toml
{
    echo "# Written by \`make lock\`. torch has no hash: which of its builds is installed depends on the machine."
    echo "torch==$torch"
    cat "$scratch/locked.txt"
} >"$scratch/whole.txt"
mv "$scratch/whole.txt" "$lock"
echo "make lock: $(grep -c == "$lock") packages in $lock"
