"""What the trials of containers prove: what starts is fine whatever the settings say, and what does not is the cause."""

import re
from collections.abc import Iterable
from dataclasses import replace

from devkit.doctor.checks.cascades import CDI_CODES
from devkit.doctor.model import Confidence, Finding, Found, Outcome, Severity, Side
from devkit.doctor.preconditions import find_cu_init_code, is_in_wsl
from devkit.doctor.signatures.model import Match
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.runs import Trial, Trials, Way
from devkit.facts.values import NOT_READ, Unknown
from devkit.text import format_count, join_words, to_one_line

STARTS, GETS_GPUS = "ENG017", "CTK013"
"""The checks of the trials: a container starts, and it gets the GPUs."""
PROGRAMS_RUN = ("CTK018", "ENG019")
"""The checks of programs that were run: that one of them cannot is not inferred."""
_JUDGED_BY_TRIALS = ("ENG", "CTK", "CDI")
"""Prefixes of checks that infer from settings what a trial tries."""
_FAULTS = {
    ("build",): "does-not-build",
    ("build", "--ignorefile"): "leaves-out",
    ("build", "--secret"): "lacks-secret",
    ("compose", "build"): "needs-build",
    ("run", "--interactive"): "ends",
    ("run", "--mount"): "writes-to-volume",
    ("exec", "--user"): "writes-to-folder",
    ("exec", "--env"): "writes-to-home",
    ("run", "--volume"): "writes-to-mount",
    ("create", "--volume"): "writes-maybe-to-mount",
}
"""Faults of a project's containers by how the command of their trial begins."""
_LONGEST = 200
_NOT_BY_UP = ("overrideCommand", "postAttachCommand")
"""Keys of devcontainer.json that are not commands, or that an editor alone runs."""
_REFUSES_CDI = re.compile(r"driver \"cdi\"|CDI device")
"""What engines say of devices that they cannot give by CDI. Source: moby/moby, daemon/cdi.go."""
_PATH = re.compile(r"/[\w.+-]+(?:/[\w.+-]+)+")
_HELP_LINES = (" Container ", " Network ", "Usage:", "Run 'docker", "See '", "time=", "Unable to find image")
"""What commands print beside an error. Source: docker/cli, cli/command/container/run.go."""


def find_fault(trial: Trial, facts: Facts) -> str:
    """Name what a trial shows, by the row of its problem; "" where the container has what it asked for."""
    if trial.is_timed_out:
        return "too-slow"
    if trial.code != 0:
        if trial.way is Way.IMAGE:
            return "no-image"
        return _FAULTS.get(trial.arguments[:2]) or _FAULTS.get(trial.arguments[:1]) or "does-not-start"
    if not trial.is_for_gpu:
        return ""
    if isinstance(trial.libcuda, Unknown):
        return "too-slow"  # the engine lost what it said
    nodes = () if isinstance(trial.device_nodes, Unknown) else trial.device_nodes
    if "/dev/dxg" not in nodes if is_in_wsl(facts) else trial.nvidiactl == "absent":
        return "no-node"
    if trial.nvidiactl == "refused" and not is_in_wsl(facts):
        return "node-refused"
    if trial.libcuda not in ("loaded", ""):
        return "no-libcuda"
    if trial.nvml not in ("loaded", ""):
        return "no-nvml"
    if trial.nvidia_smi:
        return "nvidia-smi-fails"
    has_all = isinstance(trial.gpu_count, Unknown) or is_in_wsl(facts) or trial.gpu_count >= len(facts.gpus)
    return "" if has_all else "fewer-gpus"


def find_reason(trial: Trial) -> str:
    """Find why the engine refused: its cause comes last, before what the command adds for help."""
    lines = [line for line in trial.err.splitlines() if line.strip() and not line.startswith(_HELP_LINES)]
    words = " ".join(" ".join(lines).split())
    if len(words) <= _LONGEST:
        return words
    kept = words[-_LONGEST:]
    return f"…{kept.partition(': ')[2] or kept}"


def explain(trial: Trial) -> Match | None:
    """Explain the words in which a trial ended; None where no known error is in them.

    What the image or the project of a user may cause is left out: a trial has neither.
    """
    from devkit.doctor.known_errors import find_known_errors  # it knows all checks

    said = trial.err if trial.code != 0 else "" if isinstance(trial.nvidia_smi, Unknown) else trial.nvidia_smi
    known = find_known_errors(said, is_ours=True) if said else ()
    return next((match for match in known if match.fix.where not in (Side.IMAGE, Side.PROJECT)), None)


def describe_way(trial: Trial) -> str:
    """Describe the command of a trial in a few words: "docker run --gpus all"."""
    words = ("import",) if trial.way is Way.IMAGE else ("run", *trial.arguments)
    return " ".join((trial.engine, *(trial.arguments if trial.way is Way.PROJECT else words)))


def list_trials(facts: Facts) -> tuple[Trial, ...]:
    """List the trials; empty where none was made."""
    return facts.trials.tried if isinstance(facts.trials, Trials) else ()


def is_tried(facts: Facts) -> bool:
    """Say if something proved that this machine's GPUs can be used: a container that got them, or CUDA itself.

    A project of which something shows only where it starts is not tried.
    """
    is_proven = any(each.is_for_gpu and not find_fault(each, facts) for each in list_trials(facts))
    is_proven &= not (isinstance(facts.trials, Trials) and facts.trials.pending)
    return is_proven or find_cu_init_code(facts) == 0


def describe_trials(facts: Facts) -> str:
    """Describe in a line what was tried and how it ended, or why nothing was."""
    tried = list_trials(facts)
    if not tried:
        return f"none{_explain_absence(facts)}"
    # Who may not write is started, too.
    fine = [each for each in tried if not find_fault(each, facts)]
    tried = tuple(each for each in tried if not find_fault(each, facts).startswith("writes-"))
    started = [each for each in fine if each.arguments[:1] != ("create",)]
    ways = _describe_ways([each for each in fine if each.is_for_gpu] or started)
    failed = _describe_ways([each for each in tried if each not in fine])
    said = [f"started{_count_gpus(fine)}: {ways}"] if ways else []
    return "; ".join([*said, *([f"did not start: {failed}"] if failed else [])])


def describe_outcome(facts: Facts) -> str:
    """Describe what was proved in a few words: "containers start with 2 GPUs"; or that nothing was."""
    fine = [each for each in list_trials(facts) if not find_fault(each, facts)]
    if not is_tried(facts):
        if isinstance(facts.trials, Trials) and facts.trials.pending:
            return f"settings look right{describe_untried(facts)}"
        if not list_trials(facts):
            return f"settings look right, but not tried{_explain_absence(facts)}"
        return "settings look right, but " + (
            f"trial containers {describe_trials(facts)}" if not fine else "no container was tried with a GPU"
        )
    started = f"containers start{_count_gpus(fine)}" if any(each.is_for_gpu for each in fine) else "CUDA starts"
    return f"{started}{describe_untried(facts)}"


def describe_untried(facts: Facts) -> str:
    """Describe what of the project shows only where it starts, as the end of a line; "" where nothing of it was tried."""
    has_own = isinstance(facts.project, Project) and bool(facts.project.services or facts.project.dev_containers)
    if has_own and (absence := _explain_absence(facts)):
        return f"; not tried: the project's containers{absence}"
    pending = facts.trials.pending if isinstance(facts.trials, Trials) else ()
    # What a project's containers ask for is tried with a shell of this machine in place of their programs.
    is_tried = any(each.way is Way.PROJECT and not find_fault(each, facts) for each in list_trials(facts))
    return f"; not tried: {_list_untried(facts, pending)}" if pending or is_tried else ""


def _explain_absence(facts: Facts) -> str:
    reason = facts.trials.reason if isinstance(facts.trials, Unknown) and facts.trials != NOT_READ else ""
    return f", because {to_one_line(reason)}" if reason else ""


def _list_untried(facts: Facts, pending: Iterable[str] = ()) -> str:
    """List what shows only where the project itself starts, with the command that starts it."""
    own = facts.project.dev_containers if isinstance(facts.project, Project) else ()
    hooks = (name for each in own for key in each.keys if (name := key.name).endswith("Command"))
    able = dict.fromkeys(name for name in hooks if name not in _NOT_BY_UP)
    return join_words((*pending, *able, "the project's programs (devkit up)"))


def _count_gpus(fine: Iterable[Trial]) -> str:
    counts = [each.gpu_count for each in fine if each.is_for_gpu and not isinstance(each.gpu_count, Unknown)]
    return f" with {format_count(min(counts), 'GPU')}" if any(counts) else ""


def _describe_ways(tried: Iterable[Trial]) -> str:
    """Describe commands, each engine's in one: "docker run --runtime=nvidia and --gpus all"."""
    ways: dict[str, list[str]] = {}
    for each in tried:
        _, verb, *arguments = describe_way(each).split(" ", 2)
        ways.setdefault(f"{each.engine} {verb}", []).extend(arguments)
    return join_words(f"{command} {join_words(arguments)}".strip() for command, arguments in ways.items())


def _is_named(finding: Finding, words: str) -> bool:
    """Say if an engine's words name a file that the finding is about."""
    return any(path in words for path in _PATH.findall(" ".join((finding.message, *finding.evidence))))


def weigh_by_trials(outcomes: Iterable[Outcome], facts: Facts) -> tuple[Outcome, ...]:
    """Judge what was inferred from settings by what was tried.

    Where containers get the GPUs, a finding about the settings is a note, and a warning where it explains a way that
    failed. Where none gets them, the engine's words decide: the finding that they name stays the cause, and with none of
    that kind the trial is.
    """
    outcomes, gpu = tuple(outcomes), [each for each in list_trials(facts) if each.is_for_gpu]
    if not gpu:
        return outcomes
    # A different engine than the one of the docker command says nothing of that one's settings.
    gpu = [each for each in gpu if each.engine == gpu[0].engine]
    failed = [each for each in gpu if find_fault(each, facts)]
    matches = [match for match in map(explain, failed) if match is not None]
    named = {code for match in matches for code in (match.code, *match.also)}
    words = "\n".join(each.err for each in failed)
    found = {each.check.code for each in outcomes if isinstance(each.verdict, Found)}
    # A setting that disables the way that the project asks for is the cause, whatever other ways say.
    own = (each.err for each in list_trials(facts) if each.way is Way.PROJECT and find_fault(each, facts))
    is_cdi_refused = any(_REFUSES_CDI.search(each) for each in own)

    def weigh(outcome: Outcome, finding: Finding) -> Finding:
        code = outcome.check.code
        if code == STARTS or not code.startswith(_JUDGED_BY_TRIALS) or GETS_GPUS not in outcome.check.causes:
            return finding
        if is_cdi_refused and code in CDI_CODES:
            return finding
        if len(failed) < len(gpu):
            seen = "; ".join(f"{describe_way(each)}: a container got the GPUs" for each in gpu if each not in failed)
            is_proven = code in PROGRAMS_RUN or code in named or _is_named(finding, words)
            worst = Severity.WARNING if is_proven else Severity.NOTE
            is_worse = finding.severity is Severity.ERROR or worst is Severity.NOTE
            severity = worst if is_worse else finding.severity
            return replace(finding, severity=severity, evidence=(*finding.evidence, seen))
        if matches and not named & found and not _is_named(finding, words) and finding.severity is Severity.ERROR:
            return replace(finding, severity=Severity.NOTE, confidence=Confidence.POSSIBLE)
        return finding

    return tuple(
        replace(outcome, verdict=Found(tuple(weigh(outcome, finding) for finding in outcome.verdict.findings)))
        if isinstance(outcome.verdict, Found)
        else outcome
        for outcome in outcomes
    )
