"""What CUDA and torch did when they were really tried."""

import pytest

from devkit.doctor.error_codes import find_cuda_error, load_cuda_errors
from devkit.doctor.model import Confidence, Side
from devkit.facts.runs import CudaCall, CudaStop, Deep, Step, StepEnd, TorchCall
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, healthy, inside, r, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_all, find_only

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


OTHER_CODES = [*(code for code in CODES if code), 3, 719]
UNTRIED = {
    "without --deep": inside(),
    "not read": changed(inside(), {"deep": Deep(Unknown("no child"), Unknown("no child"))}),
    "without a GPU": changed(without_gpu(), {"deep": Deep(CudaStop(StepEnd.FAILED, "dlopen", "absent", ""))}),
    "where no GPU is wanted": changed(inside(), {"container.visible_devices": "void", "deep": cuda(100).deep}),
}
MULTIPLY, START, IMPORT = "multiply on GPU 0", "start CUDA", "import torch"
NO_KERNEL = "CUDA error: no kernel image is available for execution"
OLD_PTX = "the provided PTX was compiled with an unsupported toolchain."
NO_GPU = "RuntimeError: No CUDA GPUs are available"
OTHER_LIBRARY = "ImportError: undefined symbol: __nvJitLinkComplete_12_4"
TWO_STEPS = (failed("torch.cuda.is_available", "x"), failed(START, "y"))
BNB = ("import bitsandbytes", "quantize to 4 bits")
NOTHING_TO_TRY = Step(BNB[0], StepEnd.SKIPPED, "torch sees no GPU")
NO_COMPILER = failed("compile a Triton kernel", "RuntimeError: Failed to find C compiler.")
NO_SYMBOL = failed("import flash_attn", "undefined symbol: _ZN3c105ErrorC2E")

CASES = [
    ("CUD011", cuda(0), "passed", "a working CUDA"),
    *(("CUD011", cuda(code), f"error: cuInit returns {code} | {LIBCUDA}", f"code {code}") for code in OTHER_CODES),
    ("CUD011", cuda(999, windows_guest()), "error: where: wsl", "no Linux module is loaded inside of WSL"),
    ("CUD011", stop(StepEnd.TIMED_OUT), "error: cuInit hangs", "a hang"),
    ("CUD011", stop(StepEnd.CRASHED), "error: cuInit crashes", "a crash"),
    ("CUD011", stop(StepEnd.FAILED, "dlopen libcuda.so.1"), "error: libcuda cannot be loaded", "no library"),
    *(
        (code, facts, "skipped", name)
        for code in ("CUD011", "PYT017", "PYT018", "PYT019", "PYT020")
        for name, facts in UNTRIED.items()
    ),
    *((code, torch(), "skipped", "not installed") for code in ("PYT018", "PYT019", "PYT020")),
    ("PYT017", torch(), "passed", "a torch that multiplies"),
    ("PYT017", torch(failed(MULTIPLY, NO_KERNEL)), f"error: {MULTIPLY} | has no code for the GPU", "no kernels"),
    ("PYT017", torch(failed(MULTIPLY, OLD_PTX)), f"error: {MULTIPLY} | the driver cannot compile", "a newer PTX"),
    ("PYT017", torch(failed(START, NO_GPU)), f"error: {START} | CUDA sees no GPU", "no GPU"),
    ("PYT017", torch(failed(IMPORT, OTHER_LIBRARY)), f"error: {IMPORT} | a library from a different", "library"),
    ("PYT017", torch(failed(IMPORT, "something new")), f"error: {IMPORT} | see its output", "unknown words"),
    ("PYT017", torch(Step(IMPORT, StepEnd.CRASHED, "SIGSEGV")), f"error: {IMPORT} | crashes (SIGSEGV)", "a crash"),
    ("PYT017", torch(Step(START, StepEnd.TIMED_OUT, "did not end")), f"error: {START} | hangs", "a hang"),
    ("PYT017", torch(*TWO_STEPS), "error: torch.cuda.is_available", "only the first broken step is told"),
    ("PYT017", torch(failed("multiply in bf16 on GPU 0", "not implemented")), "passed", "no bf16 is no fault"),
    ("PYT018", torch(more=BNB), "passed", "a round trip"),
    ("PYT018", torch(more=BNB, library="ErrorHandlerMockBNBNativeLibrary"), "error", "a library that pretends"),
    ("PYT018", torch(failed(BNB[0], "x"), library=""), "error", "no import"),
    ("PYT018", torch(failed(BNB[1], "x"), more=BNB), "error", "no quantization"),
    ("PYT018", torch(NOTHING_TO_TRY, library=""), "skipped", "nothing to try it on"),
    ("PYT019", torch(NO_COMPILER), "warning: no C compiler is installed", "Triton without a compiler"),
    ("PYT020", torch(NO_SYMBOL), "error: torch has cxx11abiTRUE", "FlashAttention of another build"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_trial(code):
    assert list_wrong(code, CASES) == []


@pytest.mark.parametrize("code", [code for code, meaning in CODES.items() if meaning.in_container])
def test_inside_a_container_nobody_is_sent_to_the_hosts_commands(code):
    inside_of_it, outside = find_only("CUD011", cuda(code)), find_only("CUD011", cuda(code, healthy()))
    assert (inside_of_it.fix.where, outside.fix.where) == (Side.CONTAINER, Side.HOST)
    assert not any("modprobe" in command or "systemctl" in command for command in inside_of_it.fix.commands)
    assert inside_of_it.fix.summary != outside.fix.summary


def test_each_gpu_that_fails_is_told():
    facts = torch(failed("multiply on GPU 0", "x"), failed("multiply on GPU 3", "y"))
    assert [finding.subject for finding in find_all("PYT017", facts)] == ["multiply on GPU 0", "multiply on GPU 3"]


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
