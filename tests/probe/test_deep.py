"""CUDA and torch, really tried: on a stand-in for libcuda, on stand-ins for packages, and on the torch that is here."""

import json
import sys

import pytest

from devkit.facts.runs import CudaCall, CudaStop, Step, StepEnd
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.probe.children.protocol import CHILDREN_FOLDER
from devkit.probe.deep import read_cuda, read_deep, read_torch
from devkit.probe.host import LocalHost
from tests.cuda_stub import build_stub, stub_environment
from tests.hosts import written


@pytest.fixture(scope="session")
def cuda_stub(tmp_path_factory):
    return build_stub(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def with_cuda(cuda_stub, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def setup(**settings):
        for name, value in stub_environment(cuda_stub, **settings).items():
            monkeypatch.setenv(name, value)
        return LocalHost()

    return setup


def test_a_working_cuda_says_its_version_its_gpus_and_its_library(with_cuda, cuda_stub):
    call = read_cuda(with_cuda(init="0", count="2", cuda="12080"), deadline_s=10)
    assert call == CudaCall(0, str(cuda_stub.resolve()), Release.parse("12.8"), 2, "CUDA_SUCCESS")


@pytest.mark.parametrize(
    ("settings", "end", "call"),
    [
        pytest.param({"init": "hang"}, StepEnd.TIMED_OUT, "cuInit", id="a hanging cuInit is killed"),
        pytest.param({"init": "segv"}, StepEnd.CRASHED, "cuInit", id="a crash takes only the child"),
    ],
)
@pytest.mark.clock
def test_a_cuinit_that_never_returns_is_named(with_cuda, settings, end, call):
    stop = read_cuda(with_cuda(**settings), deadline_s=2)
    assert isinstance(stop, CudaStop)
    assert (stop.end, stop.call) == (end, call)
    assert stop.libcuda.endswith("libcuda.so.1")


@pytest.mark.full
@pytest.mark.clock
def test_a_hang_after_cuinit_keeps_its_code(with_cuda):
    call = read_cuda(with_cuda(init="0", count="hang"), deadline_s=2)
    assert isinstance(call, CudaCall)
    assert (call.code, call.device_count) == (0, Unknown("cuDeviceGetCount was not reached"))


def test_a_machine_without_libcuda_says_so(monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    stop = read_cuda(LocalHost(), deadline_s=10)
    if isinstance(stop, CudaCall):
        pytest.skip("this machine has a libcuda")
    assert (stop.end, stop.call) == (StepEnd.FAILED, "dlopen libcuda.so.1")


@pytest.mark.clock
def test_torch_is_not_waited_for_behind_a_hanging_cuda(with_cuda):
    deep = read_deep(with_cuda(init="hang"), deadline_s=5)
    assert deep.torch == Unknown("cuInit hangs, and torch would wait for it, too")


def recorded(tmp_path, program, out, code=0, version="3.12.3"):
    shown = "".join(f"{json.dumps(line) if isinstance(line, dict) else line}\n" for line in out)
    safe = "" if version.startswith("3.10") else '"-P", '
    parts = '"torch", "bitsandbytes", "triton", "flash_attn"' if program == "ask_torch" else ""
    return written(
        tmp_path,
        f'[env]\n[[command]]\nargv = ["{{python}}", "--version"]\nout = "Python {version}"\n'
        f'[[command]]\nargv = ["{{python}}", {safe}"{{devkit}}/{program}.py"{", " if parts else ""}{parts}]\n'
        f"code = {code}\nout = '''\n{shown}'''\n",
    )


@pytest.mark.parametrize(
    ("out", "code", "reading"),
    [
        pytest.param([], 0, Unknown("the CUDA child ended with status 0: no output"), id="nothing"),
        pytest.param(["garbage", '["a list"]', "{"], 1, Unknown("the CUDA child ended with status 1: {"), id="garbage"),
        pytest.param(
            [{"call": "cuInit", "at_s": 0.1}, '{"init": 1'],
            124,
            CudaStop(StepEnd.TIMED_OUT, "cuInit", "cuInit did not return within 3 s", ""),
            id="cut off in the middle of the answer",
        ),
        pytest.param(
            [{"call": "cuInit"}, {"init": 0, "name": "CUDA_SUCCESS"}],
            -9,
            CudaCall(0, "", Unknown("cuDriverGetVersion did not say"), Unknown("cuDeviceGetCount was not reached"),
                     "CUDA_SUCCESS"),
            id="killed after the answer",
        ),
    ],
)  # fmt: skip
def test_whatever_the_cuda_child_prints_is_a_reading(tmp_path, out, code, reading):
    assert read_cuda(recorded(tmp_path, "ask_cuda", out, code), deadline_s=3) == reading


TORCH = {"version": "2.9.1+cu128", "cuda": "12.8", "architectures": ["sm_80"], "cxx11_abi": True}


def test_a_gpu_that_multiplies_is_read_with_its_capability(tmp_path):
    device = {"index": 0, "name": "NVIDIA T4", "capability": [7, 5], "bf16": True}
    out = [
        {"part": "torch"},
        {"step": "import torch"},
        {"worked": "import torch"},
        {"torch": TORCH},
        {"available": True},
        {"device": device},
        {"end": True},
    ]
    call = read_torch(recorded(tmp_path, "ask_torch", out), deadline_s=10)
    assert (call.version, call.cuda, call.is_available) == ("2.9.1+cu128", Release.parse("12.8"), True)
    assert call.devices[0].capability == ComputeCapability(7, 5)
    assert call.steps == (Step("import torch", StepEnd.WORKED, ""),)


@pytest.mark.parametrize(
    ("out", "code", "reading"),
    [
        pytest.param([{"absent": "torch"}], 0, None, id="no torch"),
        pytest.param(["Segmentation fault"], 1, Unknown("the torch child ended with status 1: Segmentation fault"),
                     id="garbage"),
    ],
)  # fmt: skip
def test_without_torch_there_is_nothing_to_try(tmp_path, out, code, reading):
    assert read_torch(recorded(tmp_path, "ask_torch", out, code), deadline_s=10) == reading


def test_an_import_that_crashes_is_not_tried_again(tmp_path):
    host = recorded(tmp_path, "ask_torch", [{"part": "torch"}, {"step": "import torch"}], -11)
    call = read_torch(host, deadline_s=10)
    assert call.steps == (Step("import torch", StepEnd.CRASHED, "SIGSEGV"),)
    assert (call.version, call.cuda) == ("", Unknown("torch could not be imported"))


def test_an_older_python_runs_without_a_safe_path(tmp_path):
    host = recorded(tmp_path, "ask_torch", [{"absent": "torch"}], version="3.10.12")
    assert read_torch(host, deadline_s=10) is None


STAND_IN = """
from types import SimpleNamespace
__version__ = "2.9.1+cu128"
version = SimpleNamespace(cuda="12.8")
def compiled_with_cxx11_abi(): return True
def init(): raise RuntimeError("No CUDA GPUs are available")
cuda = SimpleNamespace(get_arch_list=lambda: ["sm_90"], is_available=lambda: False, init=init,
                       is_initialized=lambda: False)
"""


@pytest.fixture
def with_packages(tmp_path, monkeypatch):
    """A function that puts stand-ins for packages before the real ones: name to text of its module."""

    def setup(**modules):
        for name, text in {"torch": STAND_IN, **modules}.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
        return LocalHost()

    return setup


NO_PACKAGES = {
    "bitsandbytes": "raise ImportError('not here')",
    "triton": "raise ImportError('nor here')",
    "flash_attn": "",
    "flash_attn_2_cuda": "",
}


def steps_of(call):
    return {step.name: step for step in call.steps}


def test_every_step_is_reported_with_its_error(with_packages):
    lines = "raise ImportError('undefined symbol: _ZN3c105ErrorC2E\\n  in flash_attn_2_cuda')"
    call = read_torch(with_packages(**NO_PACKAGES | {"flash_attn_2_cuda": lines}), deadline_s=30)
    steps = steps_of(call)
    assert (call.version, call.is_available) == ("2.9.1+cu128", False)
    assert steps["start CUDA"] == Step("start CUDA", StepEnd.FAILED, "RuntimeError: No CUDA GPUs are available")
    failed = "ImportError: undefined symbol: _ZN3c105ErrorC2E in flash_attn_2_cuda"
    assert steps["import flash_attn"] == Step("import flash_attn", StepEnd.FAILED, failed)


def test_a_package_that_crashes_does_not_hide_the_next(with_packages):
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    steps = steps_of(read_torch(with_packages(**NO_PACKAGES | {"bitsandbytes": crash}), deadline_s=30))
    assert steps["import bitsandbytes"] == Step("import bitsandbytes", StepEnd.CRASHED, "SIGSEGV")
    assert steps["import triton"].end is StepEnd.FAILED
    assert steps["import flash_attn"].end is StepEnd.WORKED


@pytest.mark.full
@pytest.mark.clock
def test_a_package_that_hangs_is_named(with_packages):
    hang = "import time; time.sleep(60)"
    steps = steps_of(read_torch(with_packages(**NO_PACKAGES | {"bitsandbytes": hang}), deadline_s=5))
    assert steps["import bitsandbytes"].end is StepEnd.TIMED_OUT


def test_a_package_that_prints_does_not_disturb_the_report(with_packages):
    greets = "print('{\"torch\": {}}'); import os; os.write(1, b'banner')"
    call = read_torch(with_packages(**NO_PACKAGES | {"flash_attn_2_cuda": greets}), deadline_s=30)
    assert call.version == "2.9.1+cu128"
    assert steps_of(call)["import flash_attn"].end is StepEnd.WORKED


def test_devkits_own_modules_do_not_stand_before_the_workloads(with_packages, tmp_path):
    whose = "import hub; raise ImportError(hub.__file__)"
    with_packages(**NO_PACKAGES | {"hub": "", "flash_attn_2_cuda": whose})
    # Without -P, as a Python before 3.11 is started.
    done = LocalHost().run([sys.executable, str(CHILDREN_FOLDER / "ask_torch.py"), "flash_attn"], deadline_s=30)
    assert f"ImportError: {tmp_path}/hub.py" in done.out


@pytest.mark.full
def test_the_torch_that_is_here_really_imports(monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    call = read_torch(LocalHost(), deadline_s=60)
    assert call.version.startswith("2.")
    assert steps_of(call)["import torch"].end is StepEnd.WORKED
