"""The folder of a run: whose it is, what its record says from the beginning to the end, and the result that it publishes."""

import json
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.workload

from devkit.errors import DevkitError
from devkit.workload.device import DeviceMemory
from devkit.workload.finetune import run_folder
from devkit.workload.finetune.decisions import Decision
from devkit.workload.finetune.run_folder import RunRecord, prepare_run_folder, publish_result
from devkit.workload.finetune.settings import FinetuneSettings
from tests.workload.finetune.small_run import ALONE

RUN = {"schema": "devkit.finetune/1"}


def write(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "texts",
    [{"notes": "mine"}, {"run__json": "[]"}, {"run__json": "{"}, {"run__json": '{"schema": "other/1"}'}],
    ids=["a file", "a list", "no JSON", "another program's"],
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path, texts, resume):
    write(tmp_path, **texts)
    with pytest.raises(DevkitError, match="contains files that devkit did not write: ") as refused:
        prepare_run_folder(tmp_path, resume=resume)
    assert "--output" in refused.value.hint
    assert len(names(tmp_path)) == 1


def test_without_resume_each_earlier_run_moves_into_a_folder_of_its_own(tmp_path):
    for _ in range(2):
        write(tmp_path, run__json=json.dumps(RUN), metrics__jsonl="", notes="mine")
        write(tmp_path / "step-1", a="")
        prepare_run_folder(tmp_path, resume=True)
        assert "step-1" in names(tmp_path)
        prepare_run_folder(tmp_path, resume=False)
    assert names(tmp_path) == ["earlier-1", "earlier-2", "notes"]
    assert names(tmp_path / "earlier-2") == ["metrics.jsonl", "run.json", "step-1"]


def settings(output):
    return FinetuneSettings(model="m", data=("d",), output=output)


def record(output, world=1):
    return RunRecord(settings(output), gpu=None, world_size=world)


def read(output):
    return json.loads((output / "run.json").read_text())


def test_a_record_says_what_is_known_so_far(tmp_path):
    run = record(tmp_path, world=2)
    run.begin()
    begun = read(tmp_path)
    assert {
        name: begun[name] for name in ("schema", "status", "decisions", "warnings", "gpu", "world", "estimated")
    } == {**RUN, "status": "running", "decisions": [], "warnings": [], "gpu": None, "world": 2, "estimated": None}
    assert begun["settings"]["model"] == "m"
    assert (tmp_path / "run.json").read_text().endswith("}\n")
    bounds = SimpleNamespace(low=1, high=3)
    estimate = SimpleNamespace(allocated_peak_bytes=2, reserved_peak_bytes=bounds, device_peak_bytes=bounds)
    reason = Decision("rank", "8", "because")
    for given, shown in (
        (None, None),
        (estimate, {"allocated_peak_bytes": 2, "reserved_peak_bytes": vars(bounds), "device_peak_bytes": vars(bounds)}),
    ):
        run.record_decisions(settings(tmp_path), SimpleNamespace(estimate=given, reasons=(reason,), warnings=("w",)))
        assert (read(tmp_path)["estimated"], read(tmp_path)["warnings"], len(read(tmp_path)["decisions"])) == (
            shown,
            ["w"],
            1,
        )
    run.stop("interrupted")
    assert read(tmp_path)["status"] == "interrupted"


@pytest.mark.parametrize(
    ("world", "is_first", "error", "kept"),
    [
        (1, True, DevkitError("wrong", "Do."), False),
        (2, True, DevkitError("wrong", "Do."), True),
        (1, False, DevkitError("wrong", "Do."), True),
        (1, True, ValueError("a\nbug"), True),
    ],
    ids=["wrong input", "of several processes", "in an earlier run's folder", "a bug"],
)
def test_a_failure_is_recorded_unless_it_is_wrong_input_of_a_run_that_had_not_begun(
    tmp_path, world, is_first, error, kept
):
    if not is_first:
        write(tmp_path, run__json=json.dumps(RUN))
    run = record(tmp_path, world)
    run.begin()
    (tmp_path / "metrics.jsonl").write_text("")
    run.fail(error)
    assert (tmp_path / "metrics.jsonl").exists() is kept
    assert (tmp_path / "run.json").exists() is kept
    if kept:
        assert read(tmp_path)["status"] == "failed"
        assert "\n" not in read(tmp_path)["error"]


@pytest.mark.parametrize(("status", "becomes"), [("running", "failed"), ("done", "done")])
def test_a_lost_rank_0_is_recorded_by_another_one(tmp_path, status, becomes):
    write(tmp_path, run__json=json.dumps({**RUN, "status": status}))
    record(tmp_path, 2).fail_for_rank0(OSError("gone"))
    assert read(tmp_path)["status"] == becomes
    assert read(tmp_path).get("error") == (None if status == "done" else "rank 0 was lost: gone")


@pytest.mark.parametrize("outcome", ["done", "interrupted"])
@pytest.mark.parametrize("reserved", [0, 7])
def test_the_end_of_a_run_is_recorded_with_its_numbers(tmp_path, outcome, reserved):
    outcome = run_folder.RunOutcome(outcome)
    events = [{"event": "start"}, {"event": "step", "loss": 3.0}, {"event": "step", "loss": 2.0}]
    write(tmp_path, metrics__jsonl="".join(json.dumps(each) + "\n" for each in events))
    write(tmp_path / "adapter", weights="abc")
    run = record(tmp_path)
    progress = SimpleNamespace(step=2, tokens=100, seconds=3.00049)
    run.finish(outcome, progress, DeviceMemory(allocated=5, reserved=reserved), micro_batch=4)
    numbers = {"step": 2, "first_loss": 3.0, "last_loss": 2.0, "tokens": 100, "seconds": 3.0, "tokens_per_s": 33.3}
    assert run.summary == numbers
    found = read(tmp_path)
    assert {name: found[name] for name in numbers} == numbers
    assert (found["status"], found["micro_batch"]) == (outcome, 4)
    assert found["measured"] == ({"allocated_peak_bytes": 5, "reserved_peak_bytes": 7} if reserved else None)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found["files"] == ({"adapter": {"weights": digest}} if outcome is run_folder.RunOutcome.DONE else {})


@pytest.mark.parametrize(("is_adapter", "name"), [(True, "adapter"), (False, "model")])
def test_a_result_holds_what_loads_it_and_replaces_an_earlier_one(tmp_path, is_adapter, name):
    step = write(tmp_path / "step-1", manifest__json="", optimizer__safetensors="", weights="new")
    (step / "folder").mkdir()
    write(tmp_path / f"{name}.tmp", half="")
    for _ in range(2):
        target = publish_result(
            tmp_path,
            step,
            is_adapter=is_adapter,
            write_metadata=lambda new: write(new, tokenizer="t"),
            left_out=("manifest.json", "optimizer.safetensors"),
        )
        assert target == tmp_path / name
        assert names(target) == ["tokenizer", "weights"]
        assert names(tmp_path) == sorted([name, "step-1"])
        (target / "stale").write_text("")


def test_a_folder_is_one_runs_alone_and_gone_where_nothing_was_written(tmp_path):
    output = tmp_path / "new" / "run"
    with run_folder.lock_run_folder(output, ALONE):
        assert output.is_dir()
    assert names(tmp_path) == []
    with run_folder.lock_run_folder(output, ALONE):
        (output / "file").write_text("")
    assert names(output) == ["file"]
