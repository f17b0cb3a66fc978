#!/bin/sh
# Install devkit, editable, in the versions of .ci/constraints.txt: install.sh EXTRA,… [GROUP]…   ("" for no extra)
set -eu
python=.venv/bin/python
lock=.ci/constraints.txt
torch=$(sed -n 's/^torch==//p' "$lock")
extras=$1
shift

# A company adds its proxy's certificate to those of the system, where pip finds it as well.
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
# On a terminal progress is seen; a log needs only the complaints.
if [ -t 1 ]; then quiet=''; else quiet=--quiet; fi
# Few of the thousands of modules are ever imported: these compile themselves the first time, where they may.
if [ -z "${PYTHONDONTWRITEBYTECODE:-}" ]; then later=--no-compile; else later=''; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# pip takes hashes for all packages or for none, and torch has none.
sed -n 's/^\([A-Za-z0-9][^\\]*==[^\\]*[^\\ ]\).*$/\1/p' "$lock" >"$scratch/versions.txt"
sed -n '/^uv==/,/[^\\]$/p' "$lock" >"$scratch/uv.txt"
pip_install() {
    "$python" -m pip install ${quiet:+"$quiet"} ${later:+"$later"} --disable-pip-version-check "$@"
}
uv_install() {
    .venv/bin/uv pip install ${quiet:+"$quiet"} --python "$python" --constraints "$lock" "$@"
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

pip_install --requirement "$scratch/uv.txt"
case ,$extras, in
*,workload,*)
    uv_install --editable .
    index=$(index_for_this_machine) || index=''
    if [ -z "$index" ]; then
        echo "==> nothing fits torch $torch here (devkit plan --torch $torch says why): torch comes from the default index"
    elif answers "$index/torch/"; then
        echo "==> torch $torch comes from $index, which fits this machine"
        pip_install "torch==$torch" --index-url "$index"
    else
        echo "==> $index would fit this machine but does not answer: torch comes from the default index"
        index=''
    fi
    # uv leaves an installed torch as it is; pip looks where this machine's settings for pip say.
    [ -n "$index" ] || pip_install --constraint "$scratch/versions.txt" "torch==$torch"
    ;;
esac
echo "==> installing devkit${extras:+[$extras]}${1:+ and what is needed to $*} into .venv (a few minutes the first time)"
for group in "$@"; do set -- "$@" "--group=$group"; shift; done
uv_install --editable ".${extras:+[$extras]}" "$@"
