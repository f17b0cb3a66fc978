#!/bin/sh
# What the wheel brings along: its bill of materials, licenses, and known vulnerabilities; and scanners on source and workflows.
set -eu
bin=$PWD/.venv/bin
out=build/audit
mkdir -p "$out"

echo "==> the wheel in an environment of its own"
rm -rf "$out/venv" "$out/dist"
"$bin/python" -m build --quiet --wheel --outdir "$out/dist"
"$bin/python" -m venv "$out/venv"
"$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$out"/dist/*.whl
"$out/venv/bin/python" -m pip uninstall --quiet --yes setuptools pip
"$bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --output-file "$out/devkit.cdx.json" "$out/venv"
"$bin/pip-licenses" --python "$out/venv/bin/python" --with-urls --format markdown --output-file "$out/licenses.md"

failed=""
echo "==> bandit, without what decision 0028 answers"
"$bin/bandit" --quiet --recursive devkit --skip B101,B104,B105,B108,B311,B403,B404,B506,B603,B606,B615,B701,B704 || failed="$failed bandit"
echo "==> zizmor"
"$bin/zizmor" --quiet --offline .github action.yml || failed="$failed zizmor"
echo "==> pip-audit"
if "$bin/python" -c 'import urllib.request; urllib.request.urlopen("https://pypi.org/pypi/pip/json", timeout=10)' 2>/dev/null; then
    "$bin/pip-audit" --progress-spinner off --format json --output "$out/vulnerabilities.json" \
        --path "$out"/venv/lib/python*/site-packages || failed="$failed pip-audit"
    # An index that mirrors pypi.org may know the packages and not their vulnerabilities: no answer is not a good one.
    [ ! -s "$out/vulnerabilities.json" ] || "$bin/python" - "$out/vulnerabilities.json" <<'EOF'
import json, sys
packages = json.load(open(sys.argv[1]))["dependencies"]
skipped = [each["name"] for each in packages if "skip_reason" in each and each["name"] != "devkit-gpu"]
print(f"audited: {len(packages) - len(skipped) - 1} of {len(packages) - 1} packages")
if skipped:
    print(f"==> LEFT OUT: the index answered nothing about {', '.join(skipped)}", file=sys.stderr)
EOF
else
    echo "==> LEFT OUT: pip-audit asks pypi.org for known vulnerabilities, which does not answer here" >&2
fi
if [ -n "$failed" ]; then
    echo "make audit: failed:$failed" >&2
    exit 1
fi
echo "make audit: $out/devkit.cdx.json and $out/licenses.md are written"
