"""A proof process that crashes, hangs or loses its device costs one stage, never the report."""

import os
import signal
import sys
import tempfile
import time

import pytest

from devkit.probe.host import LocalHost
from devkit.verify import here, process
from devkit.verify.here import ProofProgram, prove_here
from devkit.verify.report import ProofRequest, ProofVerdict
from devkit.workload.proof.stages import Depth, StageStatus, select_stages
from tests.verify.children import playing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals end processes by number on POSIX alone")

NAMES = [stage.name for stage in select_stages(Depth.STANDARD)]


def prove(script, *, timeout_s=20.0, lines=None):
    """The report on a proof that `script` plays, and every progress line in `lines`."""
    heard = [] if lines is None else lines
    program = ProofProgram(playing(script), select_stages(Depth.STANDARD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here, "find_torch_interpreter", lambda _: None)
        patch.setattr(here, "choose_program", lambda *_: program)
        return prove_here(LocalHost(), ProofRequest(Depth.STANDARD, timeout_s, heard.append))


def statuses(report):
    return {stage.name: stage.status.value for stage in report.stages}


def stage_of(report, name):
    return next(stage for stage in report.stages if stage.name == name)


def test_every_stage_is_reported_in_order_when_all_goes_well():
    report = prove("for name in wanted: play(name)")
    assert [stage.name for stage in report.stages] == NAMES
    assert report.verdict is ProofVerdict.PASSED
    assert report.log == ()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV", id="a segmentation fault"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "memory ran out", id="the out-of-memory killer"),
        pytest.param("sys.exit('no such symbol')", "exit status 1: no such symbol", id="an exit with a message"),
        pytest.param("os._exit(0)", "exit status 0", id="an exit that looks fine but left work undone"),
        pytest.param("os._exit(75)", "exit status 75", id="the lost device's status in the middle of a stage"),
    ],
)
def test_a_crash_fails_its_stage_skips_what_needs_it_and_runs_the_others(end, words):
    report = prove(f"""
        for name in wanted:
            start(name)
            if name == "lora-memorizes":
                {end}
            finish(name)
    """)
    crashed = stage_of(report, "lora-memorizes")
    assert crashed.status is StageStatus.FAILED
    assert words in crashed.reason
    assert statuses(report)["base-frozen"] == "skipped"
    assert stage_of(report, "base-frozen").reason == "lora-memorizes did not pass"
    assert [stage.status for stage in report.stages if stage.name in ("resume", "qlora-memorizes")] == ["passed"] * 2
    assert report.verdict is ProofVerdict.FAILED


def test_a_second_process_knows_the_failed_stages_of_the_first():
    report = prove("""
        for name in wanted:
            start(name)
            if name == "bitsandbytes":
                os.kill(os.getpid(), signal.SIGSEGV)
            finish(name, reason=",".join(failed))
    """)
    assert stage_of(report, "libraries").reason == "bitsandbytes"
    assert statuses(report)["qlora-memorizes"] == "skipped"
    assert statuses(report)["lora-memorizes"] == "passed"


def test_output_is_read_even_after_the_process_has_ended(monkeypatch):
    """On a busy machine the process was over before the first line was read, and all of them were lost."""

    read = process._read_lines
    monkeypatch.setattr(process, "_read_lines", lambda *given: (time.sleep(0.5), read(*given)))
    assert prove("for name in wanted: play(name)").verdict is ProofVerdict.PASSED


@pytest.mark.full
def test_a_leftover_process_that_keeps_the_pipe_open_is_not_waited_for():
    began = time.monotonic()
    report = prove("""
        import subprocess
        for name in wanted: play(name)
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    """)
    assert report.verdict is ProofVerdict.PASSED
    assert time.monotonic() - began < 30


def test_a_hang_ends_at_the_deadline_and_names_the_stage():
    began = time.monotonic()
    report = prove(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for name in wanted:
            start(name)
            if name == "kernel":
                time.sleep(600)
            finish(name)
        """,
        timeout_s=2.0,
    )
    assert time.monotonic() - began < 10
    hung = stage_of(report, "kernel")
    assert (hung.status, "no result within 2.0 s" in hung.reason) == (StageStatus.FAILED, True)
    assert set(statuses(report).values()) == {"passed", "failed", "skipped"}
    assert stage_of(report, "resume").status is StageStatus.SKIPPED


def test_a_hang_leaves_no_process_behind():
    lines = []
    prove("say(event='device', device=dict(kind=str(os.getpid()), name='', reason='', precision='', "
          "precision_reason='')); time.sleep(600)", timeout_s=2.0, lines=lines)  # fmt: skip
    pid = int(next(line for line in lines if line.startswith("device: ")).split()[1].rstrip(","))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_a_killed_process_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = """
        import tempfile
        scratch = next(word.partition("=")[2] for word in sys.argv if word.startswith("--scratch="))
        if "kernel" in wanted:
            start("kernel" if os.path.isdir(tempfile.mkdtemp(dir=scratch)) else "nowhere")
            os.kill(os.getpid(), signal.SIGKILL)
        for name in wanted:
            play(name)
        """
    assert stage_of(prove(script), "kernel").status is StageStatus.FAILED
    assert list(tmp_path.iterdir()) == []


def test_a_lost_device_is_left_to_a_new_process():
    report = prove("""
        for name in wanted:
            if name == "lora-memorizes":
                start(name)
                finish(name, "failed", "CUDA error: device-side assert triggered")
                sys.exit(75)
            play(name)
    """)
    found = statuses(report)
    assert found["lora-memorizes"] == "failed"
    assert found["resume"] == found["qlora-memorizes"] == "passed"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sys.exit(75)", id="always a lost device"),
        pytest.param("sys.exit(1)", id="cannot even start"),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", id="crashes before the first stage"),
        pytest.param("print('{\"event\": 7}'); print('{broken'); print('hello')", id="says nothing that is an event"),
    ],
)
def test_a_process_without_progress_still_ends_in_a_report(script):
    report = prove(script)
    assert [stage.name for stage in report.stages] == NAMES
    assert report.stages[0].status is StageStatus.FAILED
    assert StageStatus.PASSED not in {stage.status for stage in report.stages}


def test_output_of_libraries_is_no_event_and_reaches_only_the_log():
    lines = []
    report = prove(
        """
        print("loading...", flush=True)
        sys.stderr.write("FutureWarning: old\\n")
        for name in wanted: play(name)
        """,
        lines=lines,
    )
    assert report.verdict is ProofVerdict.PASSED
    assert not [line for line in lines if "loading" in line or "FutureWarning" in line]


def test_the_last_output_of_a_crash_is_kept():
    report = prove("""
        start(wanted[0])
        sys.stderr.write("Fatal Python error: Segmentation fault\\n\\n  File x.py, line 1 in f\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    """)
    assert report.stages[0].reason.endswith("Fatal Python error: Segmentation fault")
    assert "  File x.py, line 1 in f" in report.log


def test_progress_names_the_device_with_its_reason():
    lines = []
    prove("""
        say(event="device", device=dict(kind="cpu", name="EPYC", reason="torch sees no GPU", precision="fp32",
            precision_reason="exact"))
        for name in wanted: play(name)
    """, lines=lines)  # fmt: skip
    assert "device: cpu, EPYC (torch sees no GPU); precision: fp32 (exact)" in lines
    assert "torch passed in 0.0 s" in lines
