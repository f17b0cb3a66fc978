"""One root cause for each chain: what broke underneath silences what builds on it."""

import pytest

from devkit.doctor.model import Check, Finding, Fix, Found, Outcome, Passed, Severity
from devkit.doctor.runner import mark_root_causes
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.machines import changed, inside, r
from tests.doctor.running import build_full_report
from tests.hosts import MACHINES, facts_of

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def nothing(facts):
    yield from ()


def outcome(code, *severities, causes=()):
    findings = tuple(Finding(severity, "m", Fix("f.")) for severity in severities)
    return Outcome(Check(code, "t", nothing, causes=causes), Found(findings) if findings else Passed())


def roots(outcomes):
    return {
        (result.check.code, finding.severity): finding.follows_from
        for result in mark_root_causes(outcomes)
        if isinstance(result.verdict, Found)
        for finding in result.verdict.findings
    }


@cases(
    "outcomes, expected",
    {
        "a consequence follows from its cause": (
            [outcome("A", ERROR, causes=("B",)), outcome("B", ERROR)],
            {("A", ERROR): None, ("B", ERROR): "A"},
        ),
        "a cause that found nothing explains nothing": (
            [outcome("A", causes=("B",)), outcome("B", ERROR)],
            {("B", ERROR): None},
        ),
        "a chain names its first link": (
            [outcome("A", ERROR, causes=("B",)), outcome("B", ERROR, causes=("C",)), outcome("C", ERROR)],
            {("A", ERROR): None, ("B", ERROR): "A", ("C", ERROR): "A"},
        ),
        "a warning hides no error": (
            [outcome("A", WARNING, causes=("B",)), outcome("B", ERROR)],
            {("A", WARNING): None, ("B", ERROR): None},
        ),
        "a warning explains a warning beside an error": (
            [outcome("A", WARNING, causes=("B",)), outcome("B", ERROR, WARNING)],
            {("A", WARNING): None, ("B", ERROR): None, ("B", WARNING): "A"},
        ),
        "the heaviest finding of the cause counts": (
            [outcome("A", NOTE, WARNING, causes=("B",)), outcome("B", WARNING)],
            {("A", NOTE): None, ("A", WARNING): None, ("B", WARNING): "A"},
        ),
        "the order of printing does not matter": (
            [outcome("C", ERROR), outcome("A", ERROR, causes=("C",))],
            {("C", ERROR): "A", ("A", ERROR): None},
        ),
    },
)
def test_cause_and_consequence(outcomes, expected):
    assert roots(outcomes) == expected


# At most one root cause for each chain, on the recorded machines: what broke underneath silences what builds on it.


UNLOADED = {
    "driver.loaded": None,
    "driver.is_open": Unknown("the nvidia module is not loaded"),
    "driver.nvidiactl": "absent",
    "driver.device_nodes": (),
    "nvml": facts_of("module-not-loaded").nvml,
}
MISMATCHED = {
    "driver.on_disk": r("580.105.08"),
    "driver.libnvidia_ml": r("580.105.08"),
    "driver.libcuda": r("580.105.08"),
    "nvml": facts_of("driver-lib-mismatch").nvml,
}
NOT_INJECTED = {
    "driver.nvidiactl": "absent",
    "driver.device_nodes": (),
    "driver.libcuda": None,
    "driver.libcuda_paths": (),
    "driver.libnvidia_ml": None,
    "nvml": facts_of("in-container-no-gpu-injected").nvml,
}

INDEPENDENT = {
    "CTK006": "an old toolkit stays one to update",
    "CON009": "shared memory is as small without a GPU",
    "CON003": "shared memory is as small without a GPU",
    "CON013": "the workspace belongs to whom it belongs",
    "CON015": "limits hold for every process",
    "CUD008": "nvcc and torch differ whatever the driver does",
    "CUD009": "an image for another processor does not start at all",
    "CUD010": "a Jetson needs packages of its own",
    "PYT007": "NumPy breaks torch on the CPU, too",
    "PYT008": "transformers refuses by the versions alone",
    "PYT009": "a package of the user's folder hides others whatever they do",
    "PYT010": "a wheel for a newer C library cannot even be imported",
}
CHAIN = ("CTK", "CDI", "CUD", "PYT", "CON")


def root_codes(facts):
    return [shown.check.code for shown in build_full_report(facts).roots if shown.finding.severity is not Severity.NOTE]


def of_the_chain(codes):
    return [code for code in codes if code.startswith(CHAIN) and code not in INDEPENDENT]


def broken_above_the_driver(*, inside):
    """Machines whose driver works, and where something that builds on it does not, by name."""
    machines = {}
    for name in MACHINES:
        facts = facts_of(name)
        if isinstance(facts.driver, Unknown) or facts.system.platform != "linux" or (facts.container is None) is inside:
            continue
        found = root_codes(facts)
        if of_the_chain(found) and not any(code.startswith(("DRV", "GPU", "ENG")) for code in found):
            machines[name] = facts
    assert len(machines) > 20
    return machines


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        pytest.param(MISMATCHED, "DRV002", id="a mismatch", marks=pytest.mark.full),
        pytest.param(UNLOADED, "DRV001", id="no driver"),
    ],
)
def test_a_broken_driver_silences_toolkit_cuda_and_python(changes, cause):
    found = {name: root_codes(changed(facts, changes)) for name, facts in broken_above_the_driver(inside=False).items()}
    assert {name: codes for name, codes in found.items() if cause not in codes or of_the_chain(codes)} == {}


def test_a_gpu_that_was_not_given_silences_all_that_needs_it_inside():
    found = {
        name: of_the_chain(root_codes(changed(facts, NOT_INJECTED)))
        for name, facts in broken_above_the_driver(inside=True).items()
    }
    assert {name: codes for name, codes in found.items() if set(codes) - {"CON001"}} == {}


def test_a_torch_without_kernels_for_the_gpu_silences_triton_and_bitsandbytes():
    facts = changed(
        facts_of("torch-too-old-for-blackwell"),
        {"container.c_compiler": "", "container.python_headers": False, "container.libcuda_in_cache": False},
    )
    changes = {"python.packages": inside().python.packages, "python.bitsandbytes_cuda": ("11.8",)}
    report = build_full_report(changed(facts, changes))
    assert report.root_causes == ("PYT002",)
    followers = {shown.check.code for shown in report.following("PYT002")}
    assert {"PYT003", "CON004"} <= followers
