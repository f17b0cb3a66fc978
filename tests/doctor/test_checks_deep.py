"""What CUDA and torch did when they were really tried."""

import pytest

from devkit.doctor.error_codes import find_cuda_error, load_cuda_errors
from devkit.doctor.model import Confidence, Found, Passed, Severity, Side, Skipped
from devkit.facts.model import CudaCall, CudaStop, Deep, Step, StepEnd, TorchCall
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, r, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_all, find_only, run_check

CODES = {meaning.code: meaning for meaning in load_cuda_errors() if meaning.code is not None}
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
WORKED = ("import torch", "torch.cuda.is_available", "start CUDA", "count GPUs", "look at GPU 0", "multiply on GPU 0")


def cuda(code, facts=None):
    return changed(facts or inside(), {"deep": Deep(CudaCall(code, LIBCUDA, r("13.0"), 1, "CUDA_ERROR_OF_SOME_KIND"))})


def stop(end, call="cuInit"):
    return changed(inside(), {"deep": Deep(CudaStop(end, call, "its message", LIBCUDA))})


def torch(*broken, library="CudaBNBNativeLibrary", more=()):
    """torch as it works, with some steps that do not."""
    names = (*WORKED, "multiply in bf16 on GPU 0", *more)
    others = {step.name: step for step in broken}
    steps = [others.pop(name, Step(name, StepEnd.WORKED, "")) for name in names]
    call = TorchCall("2.9.1+cu128", r("12.8"), ("sm_90",), True, True, (), library, (*steps, *others.values()))
    return changed(inside(), {"deep": Deep(CudaCall(0, LIBCUDA), call)})


def failed(name, detail):
    return Step(name, StepEnd.FAILED, detail)


def test_a_working_cuda_passes():
    assert run_check("CUD011", cuda(0)) == Passed()


@pytest.mark.parametrize("code", [*CODES, 3, 719])
def test_every_other_code_is_an_error_with_advice(code):
    finding = find_only("CUD011", cuda(code))
    assert finding.message.startswith(f"cuInit returns {code} (CUDA_ERROR_OF_SOME_KIND): ")
    assert finding.severity is Severity.ERROR
    assert finding.fix.summary
    assert f"libcuda: {LIBCUDA}" in finding.evidence


@pytest.mark.parametrize("code", [code for code, meaning in CODES.items() if meaning.in_container])
def test_inside_a_container_nobody_is_sent_to_the_hosts_commands(code):
    inside_of_it, outside = find_only("CUD011", cuda(code)), find_only("CUD011", cuda(code, healthy()))
    assert (inside_of_it.fix.where, outside.fix.where) == (Side.CONTAINER, Side.HOST)
    assert not any("modprobe" in command or "systemctl" in command for command in inside_of_it.fix.commands)
    assert inside_of_it.fix.summary != outside.fix.summary


def test_no_linux_module_is_loaded_inside_of_wsl():
    assert find_only("CUD011", cuda(999, windows_guest())).fix.where is Side.WSL


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        pytest.param(stop(StepEnd.TIMED_OUT), "cuInit hangs", id="a hang"),
        pytest.param(stop(StepEnd.CRASHED), "cuInit crashes", id="a crash"),
        pytest.param(stop(StepEnd.FAILED, "dlopen libcuda.so.1"), "libcuda cannot be loaded", id="no library"),
    ],
)
def test_a_cuda_that_does_not_answer_is_found(facts, says):
    assert find_only("CUD011", facts).message.startswith(says)


@pytest.mark.parametrize("code", ["CUD011", "PYT017", "PYT018", "PYT019", "PYT020"])
@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(inside(), id="without --deep"),
        pytest.param(changed(inside(), {"deep": Deep(Unknown("no child"), Unknown("no child"))}), id="not read"),
        pytest.param(changed(without_gpu(), {"deep": Deep(CudaStop(StepEnd.FAILED, "dlopen", "absent", ""))}),
                     id="without a GPU"),
        pytest.param(changed(inside(), {"container.visible_devices": "void", "deep": cuda(100).deep}),
                     id="in a container that wants no GPU"),
    ],
)  # fmt: skip
def test_what_was_not_tried_is_no_finding(code, facts):
    assert isinstance(run_check(code, facts), Skipped)


@pytest.mark.parametrize("code", ["PYT018", "PYT019", "PYT020"])
def test_a_package_that_is_not_installed_is_not_judged(code):
    assert isinstance(run_check(code, torch()), Skipped)


def test_a_torch_that_multiplies_passes():
    assert run_check("PYT017", torch()) == Passed()


@pytest.mark.parametrize(
    ("step", "says"),
    [
        pytest.param(failed("multiply on GPU 0", "CUDA error: no kernel image is available for execution"),
                     "this torch has no code for the GPU", id="no kernels"),
        pytest.param(failed("multiply on GPU 0", "the provided PTX was compiled with an unsupported toolchain."),
                     "the driver cannot compile", id="PTX of a newer CUDA"),
        pytest.param(failed("start CUDA", "RuntimeError: No CUDA GPUs are available"), "CUDA sees no GPU", id="no GPU"),
        pytest.param(failed("import torch", "ImportError: undefined symbol: __nvJitLinkComplete_12_4"),
                     "a library of another release", id="another library"),
        pytest.param(failed("import torch", "something new"), "see its own words", id="words that nobody knows"),
        pytest.param(Step("import torch", StepEnd.CRASHED, "SIGSEGV"), "crashes (SIGSEGV)", id="a crash"),
        pytest.param(Step("start CUDA", StepEnd.TIMED_OUT, "did not end"), "hangs", id="a hang"),
    ],
)  # fmt: skip
def test_the_step_that_broke_is_named_with_its_cause(step, says):
    finding = find_only("PYT017", torch(step))
    assert step.name in finding.message
    assert says in finding.message


def test_only_the_first_broken_step_of_a_start_is_told():
    facts = torch(failed("torch.cuda.is_available", "x"), failed("start CUDA", "y"))
    assert find_only("PYT017", facts).subject == "torch.cuda.is_available"


def test_each_gpu_that_fails_is_told():
    facts = torch(failed("multiply on GPU 0", "x"), failed("multiply on GPU 3", "y"))
    assert [finding.subject for finding in find_all("PYT017", facts)] == ["multiply on GPU 0", "multiply on GPU 3"]


def test_a_gpu_without_bf16_is_no_broken_gpu():
    assert run_check("PYT017", torch(failed("multiply in bf16 on GPU 0", "not implemented"))) == Passed()


BNB = ("import bitsandbytes", "quantize to 4 bits")


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(torch(more=BNB), Passed, id="a round trip"),
        pytest.param(torch(more=BNB, library="ErrorHandlerMockBNBNativeLibrary"), Found, id="a library that pretends"),
        pytest.param(torch(failed(BNB[0], "x"), library=""), Found, id="no import"),
        pytest.param(torch(failed(BNB[1], "x"), more=BNB), Found, id="no quantization"),
        pytest.param(
            torch(Step(BNB[0], StepEnd.SKIPPED, "torch sees no GPU"), library=""), Skipped, id="nothing to try it on"
        ),
    ],
)
def test_bitsandbytes(facts, verdict):
    assert isinstance(run_check("PYT018", facts), verdict)


def test_triton_and_flash_attention_carry_their_own_words():
    facts = torch(
        failed("compile a Triton kernel", "RuntimeError: Failed to find C compiler."),
        failed("import flash_attn", "undefined symbol: _ZN3c105ErrorC2E"),
    )
    assert find_only("PYT019", facts).message.endswith("there is no C compiler")
    assert "torch has cxx11abiTRUE" in find_only("PYT020", facts).evidence


def test_a_cuda_that_does_not_start_explains_torch():
    broken = torch(failed("start CUDA", "RuntimeError: CUDA unknown error"))
    report = build_full_report(changed(broken, {"deep.cuda": CudaCall(999, LIBCUDA)}))
    assert report.root_causes == ("CUD011",)
    assert [shown.check.code for shown in report.following("CUD011")] == ["PYT017"]


def test_a_hidden_gpu_explains_cuinits_code():
    facts = changed(cuda(100), {"python.cuda_visible_devices": "7"})
    assert build_full_report(facts).root_causes == ("PYT006",)


def test_words_are_read_without_regard_to_case():
    meaning = find_cuda_error("cuda ERROR: NO KERNEL IMAGE IS AVAILABLE")
    assert meaning is not None and meaning.confidence is Confidence.CERTAIN
    assert find_cuda_error("all is well") is None
