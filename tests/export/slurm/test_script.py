"""The batch script, run by bash with programs that record how they are called."""

import subprocess
from itertools import product
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.export.slurm.settings import ContainerRuntime
from devkit.export.task import Accelerator
from devkit.solver.plan import Vendor
from devkit.workload.finetune.settings import FinetuneSettings
from tests.render.test_artifacts import linter

from .tasks import Login, files_of, script_of, task, with_folders

NASTY = 'it\'s "$(touch pwned)" `id` ${HOME} {{ x }} #1 \\ 100%'
FLAGS = {"--bind", "--cleanenv", "--no-home", "--nv", "--pwd", "--rocm"}
"""Of those that `apptainer exec` takes.
Source: https://github.com/apptainer/apptainer/blob/main/cmd/internal/cli/action_flags.go"""


@pytest.fixture
def login(tmp_path):
    return Login(tmp_path)


def apptainer_call(login):
    """Flags, binds and variables of the only call."""
    (call,) = login.calls("apptainer")
    words = call["words"][1 : call["words"].index("env")]
    rest = call["words"][call["words"].index("env") + 1 :]
    variables = rest[: next(at for at, word in enumerate(rest) if "=" not in word)]
    return {
        "flags": {word for word in words if word.startswith("--")},
        "binds": [words[at + 1] for at, word in enumerate(words) if word == "--bind"],
        "variables": dict(each.split("=", 1) for each in variables),
    }


def test_apptainer_gets_gpus_and_storage_and_nothing_of_the_login(login):
    (login.home / ".cache/huggingface").mkdir(parents=True)
    (login.home / ".cache/huggingface/token").write_text("hf_secret", encoding="ascii")
    done = login.run(script_of(task()), CUDA_VISIBLE_DEVICES="2,3", PYTHONPATH="/elsewhere")
    assert (done.returncode, done.stderr) == (0, "")
    call = apptainer_call(login)
    assert call["flags"] == {"--nv", "--cleanenv", "--no-home", "--pwd", "--bind"} <= FLAGS
    assert call["binds"][-1] == f"{login.home}/.cache/huggingface/token:/home/dev/.config/huggingface/token:ro"
    assert "PYTHONPATH" not in call["variables"]
    assert call["variables"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert all(Path(each.partition(":")[0]).exists() for each in call["binds"])
    assert (login.project / "tuned").is_dir()
    assert len(call["binds"]) == 5
    assert "hf_secret" not in str(login.calls("apptainer")) + str(login.calls("srun"))


def test_amd_gpus_are_passed_to_the_container_in_their_own_way_and_none_without_gpus(login):
    gpus = Accelerator(vendor=Vendor.ROCM, name="MI300X", count=1, memory_bytes=0)
    script = script_of(task(accelerator=gpus))
    assert "#SBATCH --gres=gpu:mi300x:1\n" in script
    assert login.run(script, ROCR_VISIBLE_DEVICES="4").returncode == 0
    call = apptainer_call(login)
    assert "--rocm" in call["flags"] and "--nv" not in call["flags"]
    assert call["variables"]["ROCR_VISIBLE_DEVICES"] == "4"
    without = script_of(task(gpus=0))
    assert not {"--nv", "--rocm"} & set(without.split()) and "--gres" not in without


def test_the_clusters_own_folders_and_gpus_are_those_of_other_flavors(login):
    assert login.run(script_of(task(), flavor=ContainerRuntime.PYXIS)).returncode == 0
    (srun,) = login.calls("srun")
    assert "--no-container-mount-home" in srun["words"]
    assert srun["environment"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    made = with_folders(task(), checkpoints="$WORK/kept here")
    done = login.run(script_of(made, flavor=ContainerRuntime.NONE), WORK=str(login.home / "work"))
    assert (done.returncode, done.stderr) == (0, "")
    call = login.calls("devkit")[-1]
    assert f"{login.home}/work/kept here" in call["words"]
    assert call["environment"]["TRITON_CACHE_DIR"] == f"{login.home}/devkit/compiled/triton"
    colon = task(FinetuneSettings(model="m", data=("d",), output=Path("a:b")))
    for flavor in (ContainerRuntime.APPTAINER, ContainerRuntime.PYXIS):
        with pytest.raises(DevkitError, match="contains ':'"):
            script_of(colon, flavor=flavor)
    assert "a:b" in script_of(colon, flavor=ContainerRuntime.NONE)


def test_several_nodes_meet_at_the_first_and_each_knows_its_number(login):
    done = login.run(script_of(task(nodes=2, gpus=8)), SLURM_JOB_ID="123456", SLURM_JOB_NODELIST="n[1-2]")
    assert (done.returncode, done.stderr) == (0, "")
    calls = login.calls("apptainer")
    assert len(calls) == 2
    for node, call in enumerate(calls):
        met = {f"PET_NODE_RANK={node}", "PET_MASTER_ADDR=first", "PET_MASTER_PORT=23456"}
        assert met <= set(call["words"])
    (srun,) = login.calls("srun")
    words = {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--kill-on-bad-exit=0", "--wait=120"}
    assert words <= set(srun["words"])


@pytest.mark.parametrize("flavor", list(ContainerRuntime))
def test_words_of_users_arrive_as_they_were_written(login, flavor):
    finetune = FinetuneSettings(model=NASTY, data=(NASTY, "line\nbreak"), output=Path(f"out/{NASTY}".replace(":", "")))
    made = task(finetune, environment=(("A", NASTY), ("B", "two\nlines, and a comma")))
    done = login.run(script_of(made, flavor=flavor), SCRATCH=str(login.home))
    assert (done.returncode, done.stderr) == (0, "")
    runs_image = flavor not in (ContainerRuntime.PYXIS, ContainerRuntime.NONE)
    (call,) = login.calls(str(flavor) if runs_image else "devkit")
    words = call["words"][-len(made.command) + 1 :]
    expected = list(made.command[1:])
    if not flavor.is_container:
        expected[expected.index("--output") + 1] = f"{login.home}/devkit/my-project/{finetune.output.name}"
    assert words == expected
    if runs_image:
        assert {f"A={NASTY}", "B=two\nlines, and a comma"} <= set(call["words"])
    else:
        assert (call["environment"]["A"], call["environment"]["B"]) == (NASTY, "two\nlines, and a comma")
    assert not list(login.project.glob("**/pwned")) and not list(login.home.glob("**/pwned"))


def test_only_codes_that_say_try_again_are_tried_again(login):
    script, requeues = script_of(task()), 0
    for code, is_tried in {75: 1, 0: 0, 1: 0, 2: 0, 69: 1, 74: 0, 76: 0, 137: 1}.items():
        assert login.run(script, CODE=str(code)).returncode == code
        requeues += is_tried
        assert len(login.calls("scontrol")) == requeues, code


def test_what_is_missing_is_said_before_anything_is_made(login):
    done = login.run(script_of(task()), SLURM_JOB_ID="")
    assert (done.returncode, done.stderr) == (2, "job.sbatch: this is a script for sbatch\n")
    done = login.run(script_of(with_folders(task(), data="/no/such/folder")))
    assert (done.returncode, "folder /no/such/folder does not exist" in done.stderr) == (2, True)
    assert [each.name for each in (login.home / "devkit").iterdir()] == ["my-project.sif"]
    (login.home / "devkit/my-project.sif").unlink()
    done = login.run(script_of(task()))
    assert (done.returncode, "create it with sh deploy/slurm/build-image.sh" in done.stderr) == (2, True)


def test_the_count_of_turns_without_progress_begins_anew_at_each_checkpoint_and_survives_nonsense(login):
    kept = login.home / "devkit/my-project/tuned"
    kept.mkdir(parents=True)
    script = script_of(task(), requeues=2)

    def turn():
        return login.run(script, CODE="75").returncode

    assert [turn(), turn(), turn()] == [75, 75, 1]
    (kept / "latest").symlink_to("step-10")
    assert [turn(), turn(), turn()] == [75, 75, 1]
    (kept / ".requeued").write_text("a[$(touch>$HOME/pwned)] step-10\n", encoding="ascii")
    assert turn() == 75
    assert not list(login.home.glob("**/pwned"))


def test_modules_are_loaded_from_scratch_and_a_missing_one_ends_the_job(login):
    script = script_of(task(), flavor=ContainerRuntime.NONE, module=("cuda/12.8", "gcc"))
    tells = 'module() { echo "$*" >>"$HOME/modules"; [ "$2" != gcc ]; }; export -f module; exec bash "$HOME/it"'
    (login.home / "it").write_text(script, encoding="utf-8")
    done = login.run(tells)
    assert done.returncode == 2
    assert (login.home / "modules").read_text(encoding="ascii") == "purge\nload cuda/12.8\nload gcc\n"
    assert login.calls("srun") == []


def test_the_image_is_built_beside_its_place_and_takes_it_when_it_is_whole(login, tmp_path):
    files = files_of(task(), image_file="$SCRATCH/images/mine.sif")
    folder = tmp_path / "deploy"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert "Bootstrap: docker\nFrom: registry.example/team/image:1\n" in files["image.def"]
    scratch = login.home / "scratch"
    (scratch / "images").mkdir(parents=True)
    (scratch / "images/mine.sif.new").touch()
    done = login.run((folder / "build-image.sh").read_text(encoding="utf-8"), SCRATCH=str(scratch))
    assert done.returncode == 0, done.stderr
    (call,) = login.calls("apptainer")
    assert call["words"][:3] == ["build", "--force", f"{scratch}/images/mine.sif.new"]
    assert call["environment"]["APPTAINER_TMPDIR"] == f"{scratch}/images/build"
    assert (scratch / "images/mine.sif").is_file()


@pytest.mark.full
def test_shellcheck_has_nothing_to_say_of_any_script(tmp_path):
    variants = ({}, {"module": ("apptainer",), "requeues": 0}, {"image_file": "~/my image", "setup": ("ulimit -n 9",)})
    for flavor, (nodes, gpus), number in product(ContainerRuntime, ((1, 0), (1, 8), (2, 8)), range(len(variants))):
        settings = dict(variants[number])
        if flavor is ContainerRuntime.NONE and number == 2:
            settings["venv"] = "$HOME/my env"
        for path, text in files_of(task(nodes=nodes, gpus=gpus), flavor=flavor, **settings).items():
            if path != "image.def":
                (tmp_path / f"{flavor}-{nodes}-{gpus}-{number}-{path}").write_text(text, encoding="utf-8")
    argv = [linter("shellcheck"), *sorted(tmp_path.iterdir())]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == ""
