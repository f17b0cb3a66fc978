"""What the pods of the checks run, and how their reports leave them: as a line of the log that names the node."""

REPORTS = "/reports"
"""Where a pod writes its reports: a volume of its own."""
DONE = f"{REPORTS}/done"
"""Is there once everything was printed."""

_REPORT = """\
# One line for each report, the node's name before all else: what it holds was cleaned of names.
report() {
  [ -s "$1" ] || return 0
  printf '{"node": "%s", ' "$NODE_NAME"
  tail -c +2 "$1" | tr -d '\\n'
  echo
}
"""

_READ = "devkit doctor {flags}--timeout 60 --project . --save-facts facts.json --format json --output doctor.json"


def doctor_script() -> str:
    """Reads the node and says what was found, then waits, since a DaemonSet starts what ends anew. POSIX sh.

    Ends with the doctor's code when it wrote no report; what it found is no failure of the pod.
    """
    return f"""\
set -u
# Process 1 heeds no signal that it has no trap for.
trap 'exit 0' TERM INT
cd {REPORTS} || exit
{_REPORT}
code=0; {_READ.format(flags="")} || code=$?
[ -s facts.json ] && [ -s doctor.json ] || exit "$code"
report facts.json
report doctor.json
: > {DONE}
sleep infinity & wait
"""


def verify_script(*, is_quick: bool) -> str:
    """Proves the GPUs that the pod has, and ends with the proof's code: 0 when it passed. POSIX sh."""
    depth = "--quick " if is_quick else ""
    return f"""\
set -u
cd {REPORTS} || exit
{_REPORT}
# What it finds is in the report; the proof decides.
{_READ.format(flags="--deep ")} || :
code=0; devkit verify --here {depth}--timeout 1800 --output verify.json >&2 || code=$?
report facts.json
report verify.json
exit "$code"
"""
