import pytest

from devkit.doctor.model import Confidence, Found, Passed, Severity, Skipped
from devkit.facts.values import ComputeCapability, Unknown
from tests.doctor.machines import changed, healthy, r, windows_guest, without_gpu
from tests.doctor.projects import DOCKERFILE, IMAGE, dev, files_of, on
from tests.doctor.running import find_only, run_check

TORCH = "RUN pip install --index-url https://download.pytorch.org/whl/cu128 torch==2.9.1\n"


def image(base, *lines, torch=TORCH, compiler="RUN apt-get install -y gcc\n"):
    return files_of(dev=dev(), image=f"FROM {base}\n" + compiler + torch + "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("base", "severity"),
    [
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu24.04", None, id="a tag of a supported system"),
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu20.04", Severity.WARNING, id="a system past its support"),
        pytest.param("nvidia/cuda:latest", Severity.ERROR, id="latest"),
        pytest.param("nvidia/cuda", Severity.ERROR, id="no tag at all"),
        pytest.param("docker.io/nvidia/cuda:11.0-base", Severity.ERROR, id="a deleted tag behind a registry's name"),
        pytest.param("nvidia/cuda:10.1-devel-ubuntu18.04", Severity.ERROR, id="a CUDA whose images are gone"),
        pytest.param("nvidia/cuda:99.0.0-base-ubuntu30.04", None, id="a tag newer than the tables"),
        pytest.param("nvidia/cuda:${TAG}", None, id="a tag that a variable decides"),
        pytest.param("python:3.12-slim", None, id="another image"),
    ],
)
def test_tags_stay(tmp_path, base, severity):
    verdict = run_check("PRJ021", on(tmp_path, image(base)))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize(("torch", "advice"), [("", "the tag of a newer CUDA"), (TORCH, "a slim Python image")])
def test_an_image_to_compile_in_is_not_replaced_by_one_without_nvcc(tmp_path, torch, advice):
    finding = find_only("PRJ021", on(tmp_path, image("nvidia/cuda:11.4.3-devel-ubuntu18.04", torch=torch)))
    assert advice in finding.fix.summary


def test_the_default_of_an_argument_is_judged(tmp_path):
    files = files_of(dev=dev(), image="ARG TAG=11.0-base\nFROM nvidia/cuda:${TAG}\n")
    finding = find_only("PRJ021", on(tmp_path, files))
    assert finding.subject == f"{DOCKERFILE}:2"
    given = files_of(dev=dev(build={"dockerfile": "Dockerfile", "args": {"TAG": "12.8.1-base-ubuntu24.04"}}))
    assert isinstance(run_check("PRJ021", on(tmp_path, files | given)), Passed)


@pytest.mark.parametrize(
    ("base", "index", "severity"),
    [
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu24.04", "cu128", None, id="the small base image"),
        pytest.param("nvidia/cuda:12.8.1-runtime-ubuntu24.04", "cu128", Severity.NOTE, id="runtime of the same CUDA"),
        pytest.param("nvidia/cuda:12.8.1-devel-ubuntu24.04", "cu128", None, id="devel of the same CUDA, to compile"),
        pytest.param("nvidia/cuda:12.6.3-devel-ubuntu24.04", "cu128", Severity.WARNING, id="devel of another CUDA"),
        pytest.param("nvidia/cuda:12.3.2-runtime-ubuntu22.04", "cu128", Severity.WARNING, id="a CUDA without wheels"),
        pytest.param("python:3.12-slim", "cu128", None, id="no CUDA in the image"),
    ],
)
def test_an_image_carries_cuda_once(tmp_path, base, index, severity):
    verdict = run_check("PRJ022", on(tmp_path, image(base, torch=TORCH.replace("cu128", index))))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


def test_an_image_without_torch_may_carry_cuda(tmp_path):
    files = image("nvidia/cuda:12.3.2-runtime-ubuntu22.04", torch="")
    assert isinstance(run_check("PRJ022", on(tmp_path, files)), Passed)


@pytest.mark.parametrize(
    ("base", "compiler", "verdict"),
    [
        pytest.param("python:3.12-slim", "", Found, id="slim, without"),
        pytest.param("python:3.12-slim-bookworm", "RUN apt-get install -y gcc-13\n", Passed, id="slim, with gcc"),
        pytest.param("ubuntu:24.04", "RUN apt install -y build-essential\n", Passed, id="with build-essential"),
        pytest.param("nvidia/cuda:12.8.1-runtime-ubuntu24.04", "", Found, id="a runtime image"),
        pytest.param("nvidia/cuda:12.8.1-devel-ubuntu24.04", "", Passed, id="a devel image"),
        pytest.param("python:3.12", "", Passed, id="the whole Python image"),
        pytest.param("mcr.microsoft.com/devcontainers/python:3.12", "", Passed, id="an image that may have one"),
    ],
)
def test_an_image_has_a_compiler(tmp_path, base, compiler, verdict):
    assert isinstance(run_check("PRJ023", on(tmp_path, image(base, compiler=compiler))), verdict)


def test_a_compiler_in_a_lower_stage_counts(tmp_path):
    text = f"FROM python:3.12-slim AS low\nRUN apt-get install -y gcc\nFROM low\n{TORCH}"
    assert isinstance(run_check("PRJ023", on(tmp_path, files_of(dev=dev(), image=text))), Passed)


@pytest.mark.parametrize(
    ("index", "driver", "cuda", "verdict"),
    [
        pytest.param("cu128", "580.95.05", "13.0", Passed, id="older than the driver"),
        pytest.param("cu129", "570.124.06", "12.8", Passed, id="newer within a major"),
        pytest.param("cu130", "570.124.06", "12.8", Found, id="of the next major"),
        pytest.param("cpu", "570.124.06", "12.8", Passed, id="for the CPU"),
        pytest.param("cu999", "570.124.06", "12.8", Passed, id="an index that the tables do not know"),
    ],
)
def test_the_driver_runs_the_chosen_torch(tmp_path, index, driver, cuda, verdict):
    machine = changed(healthy(), {"nvml.driver": r(driver), "nvml.cuda": r(cuda)})
    files = files_of(dev=dev(), image=IMAGE.replace("cu128", index))
    assert isinstance(run_check("PRJ027", on(tmp_path, files, machine)), verdict)


@pytest.mark.parametrize(
    ("base", "lines", "verdict"),
    [
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu24.04", (), Passed, id="as new as the driver's"),
        pytest.param("nvidia/cuda:12.9.1-base-ubuntu24.04", (), Found, id="newer than the driver's"),
        pytest.param(
            "nvidia/cuda:12.9.1-base-ubuntu24.04", ("ENV NVIDIA_DISABLE_REQUIRE=1",), Passed, id="with the demand off"
        ),
    ],
)
def test_the_image_asks_for_no_newer_driver(tmp_path, base, lines, verdict):
    machine = changed(healthy(), {"nvml.driver": r("570.124.06"), "nvml.cuda": r("12.8")})
    assert isinstance(run_check("PRJ027", on(tmp_path, image(base, *lines), machine)), verdict)


def test_the_driver_is_the_one_of_windows_in_wsl(tmp_path):
    finding = find_only(
        "PRJ027",
        on(
            tmp_path,
            files_of(dev=dev(), image=IMAGE.replace("cu128", "cu130")),
            changed(windows_guest(), {"nvml.driver": r("560.94"), "nvml.cuda": r("12.6")}),
        ),
    )
    assert finding.fix.where.value == "windows"
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "machine", [without_gpu(), changed(healthy(), {"nvml": Unknown("late")})], ids=["none", "late"]
)
def test_without_a_known_driver_nothing_is_too_new(tmp_path, machine):
    files = files_of(dev=dev(), image=IMAGE.replace("cu128", "cu132"))
    assert isinstance(run_check("PRJ027", on(tmp_path, files, machine)), Skipped)


@pytest.mark.parametrize(
    ("features", "verdict"),
    [
        pytest.param({"ghcr.io/devcontainers/features/nvidia-cuda:1": {"cudaVersion": "12.5"}}, Found, id="CUDA again"),
        pytest.param({"ghcr.io/devcontainers/features/git:1": {}}, Passed, id="another Feature"),
    ],
)
def test_a_feature_brings_no_second_cuda(tmp_path, features, verdict):
    facts = on(tmp_path, files_of(dev=dev(features=features), image=IMAGE))
    result = run_check("PRJ022", facts)
    assert isinstance(result, verdict)
    assert [finding.severity for finding in getattr(result, "findings", ())] in ([], [Severity.NOTE])


@pytest.mark.parametrize(
    ("base", "capability", "says"),
    [
        pytest.param("nvidia/cuda:11.4.3-devel-ubuntu18.04", "8.9", "11.8 or newer", id="older than the GPU"),
        pytest.param("nvidia/cuda:11.8.0-devel-ubuntu22.04", "8.9", None, id="the first that knows it"),
        pytest.param("nvidia/cuda:13.0.2-devel-ubuntu24.04", "7.0", "12.9 or older", id="newer than its last"),
        pytest.param("nvidia/cuda:12.9.1-devel-ubuntu24.04", "7.0", None, id="a patch of its last"),
        pytest.param("nvidia/cuda:12.8.1-devel-ubuntu24.04", "12.0", None, id="Blackwell"),
    ],
)
def test_nvcc_compiles_for_the_gpu(tmp_path, base, capability, says):
    machine = changed(healthy(), {"nvml.gpus.0.capability": ComputeCapability.parse(capability)})
    verdict = run_check("PRJ033", on(tmp_path, image(base), machine))
    found = [finding.fix.summary for finding in getattr(verdict, "findings", ())]
    assert found == ([f"Take a devel image of CUDA {says}."] if says else [])


@pytest.mark.parametrize("base", ["nvidia/cuda:11.4.3-runtime-ubuntu18.04", "python:3.12-slim"])
def test_an_image_without_nvcc_compiles_nothing(tmp_path, base):
    assert isinstance(run_check("PRJ033", on(tmp_path, image(base))), Skipped)
