"""What sites have besides Apptainer and Pyxis: conda, lines of their own, other runtimes, ready images, no internet."""

import re

import pytest

from devkit.errors import DevkitError
from devkit.export.launch import LAUNCHER
from devkit.export.slurm import render_slurm
from devkit.export.slurm.settings import ContainerRuntime, SlurmSettings, validate_job_name

from .tasks import Login, context, files_of, script_of, task


@pytest.fixture
def login(tmp_path):
    return Login(tmp_path)


def own(**changes):
    return task(**{"command": ("python", "train.py"), "is_own_command": True, **changes})


def test_conda_and_lines_of_ones_own_come_before_the_job(login):
    (login.home / "conda.sh").write_text('conda() { echo "conda $*" >>"$HOME/said"; }\n')
    settings = {"conda": "torch-env", "setup": ('echo "after $HOME" >>"$HOME/said"', "export FROM_SITE='a b'")}
    script = script_of(own(), flavor=ContainerRuntime.NONE, **settings)
    done = login.run(script.replace("eval ", '. "$HOME/conda.sh"; eval ', 1))
    assert (done.returncode, done.stderr) == (0, "")
    said = (login.home / "said").read_text().splitlines()
    assert said == ["conda shell.bash hook", "conda activate torch-env", f"after {login.home}"]
    (call,) = login.calls("python")
    assert (call["words"], call["environment"]["FROM_SITE"]) == (["train.py"], "a b")


@pytest.mark.parametrize("flavor", [ContainerRuntime.SINGULARITY, ContainerRuntime.APPTAINER])
def test_singularity_is_started_and_built_as_apptainer_is(login, flavor):
    files = files_of(task(), flavor=flavor)
    assert login.run(files["job.sbatch"]).returncode == 0
    (call,) = login.calls(str(flavor))
    assert call["words"][:3] == ["exec", "--nv", "--cleanenv"]
    assert f"{flavor} build --force" in files["build-image.sh"]
    assert f'export {str(flavor).upper()}_TMPDIR="${{DEVKIT_TMP:-' in files["build-image.sh"]


def test_shifter_sees_the_folders_of_the_cluster(login):
    script = script_of(task(), flavor=ContainerRuntime.SHIFTER)
    assert "#SBATCH --image=docker:registry.example/team/image:1\n" in script
    assert login.run(script).returncode == 0
    (call,) = login.calls("shifter")
    words = call["words"]
    assert words[:2] == ["--image=docker:registry.example/team/image:1", "env"]
    assert f"HF_HUB_CACHE={login.home}/devkit/huggingface/hub" in words
    assert words[words.index("--output") + 1] == f"{login.home}/devkit/my-project/tuned"
    assert call["folder"] == str(login.project)


def test_podman_hpc_mounts_what_the_dev_container_has(login):
    assert login.run(script_of(task(), flavor=ContainerRuntime.PODMAN_HPC)).returncode == 0
    (call,) = login.calls("podman-hpc")
    words = call["words"]
    assert words[:4] == ["run", "--rm", "--gpu", "--network"]
    assert f"{login.project}:/workspaces/my-project" in words
    at = words.index("env")
    assert words[at - 1] == "registry.example/team/image:1"
    assert words[words.index("--output") + 1] == "tuned"


def test_a_sites_ready_image_is_used_as_it_is_and_nothing_is_built(login):
    made = own(image="", is_foreign_image=True)
    settings = SlurmSettings(image_file="$CONTAINERDIR/pytorch-2.4.0.sif")
    rendered = render_slurm(made, settings, context())
    assert [each.path for each in rendered.artifacts] == ["job.sbatch"]
    assert not any("build" in step for step in rendered.next_steps)
    (login.home / "pytorch-2.4.0.sif").touch()
    done = login.run(rendered.artifacts[0].content.decode(), CONTAINERDIR=str(login.home))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{login.home}/pytorch-2.4.0.sif" in login.calls("apptainer")[0]["words"]
    assert login.run(rendered.artifacts[0].content.decode(), CONTAINERDIR="/none").returncode == 2


@pytest.mark.parametrize("flavor", list(ContainerRuntime))
def test_models_are_fetched_where_there_is_internet_and_the_job_is_offline(login, flavor):
    settings = SlurmSettings(flavor=flavor, prefetch=("a/model", "dataset:b/c"))
    made = render_slurm(task(), settings, context())
    files = {each.path: each.content.decode() for each in made.artifacts}
    assert "HF_HUB_OFFLINE=1" in files["job.sbatch"]
    fetch, submit = map(made.next_steps.index, ("bash deploy/slurm/prefetch.sh", "sbatch deploy/slurm/job.sbatch"))
    assert fetch < submit
    done = login.run(files["prefetch.sh"])
    assert (done.returncode, done.stderr) == (0, "")
    program = str(flavor) if flavor in ("apptainer", "singularity", "shifter") else "python3"
    (call,) = login.calls(program)
    assert call["words"][-3:] == ["-", "a/model", "dataset:b/c"]
    assert (login.home / "devkit/huggingface/hub").is_dir()
    assert "HF_HUB_OFFLINE" not in script_of(task(), flavor=flavor)


def test_srun_starts_a_process_for_each_gpu_that_reads_slurms_own_variables(login):
    made = own(gpus=4, nodes=2, cpus=32)
    script = script_of(made, flavor=ContainerRuntime.NONE, srun_processes=True)
    assert "#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=8\n" in script
    done = login.run(script, SLURM_JOB_NODELIST="n[1-2]", SLURM_PROCID="5", SLURM_LOCALID="1", SLURM_NTASKS="8")
    assert done.returncode == 0, done.stderr
    (srun,) = login.calls("srun")
    assert "--ntasks-per-node=4" in srun["words"]
    variables = login.calls("python")[0]["environment"]
    expected = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "first"}
    assert {name: variables[name] for name in expected} == expected
    assert not any(name.startswith("PET_N") for name in variables)


def test_names_and_settings_that_a_site_could_not_take_are_refused():
    for name in ("chess_finetune", "pm-crop64", "Run.1"):
        assert f"#SBATCH --job-name={name}\n" in script_of(task(name=validate_job_name(name, "--name")))
    for name in ("a b", "", "x/y", "-a", "$(id)"):
        with pytest.raises(DevkitError, match="is no name for a job"):
            validate_job_name(name, "--name")
    torchrun = own(gpus=2, command=(*LAUNCHER, "torchrun", "--no-python", "python", "x.py"))
    wrong = (
        (own(), {"conda": "a b"}, "--conda 'a b' is not valid"),
        (own(), {"conda": "$(id)", "flavor": ContainerRuntime.NONE}, "is not valid"),
        (own(), {"conda": "x"}, "--conda is for --flavor none"),
        (own(), {"prefetch": ("a; b",)}, "--prefetch 'a; b' is not valid"),
        *((each, {"srun_processes": True}, "would both start the processes") for each in (task(gpus=2), torchrun)),
    )
    for made, settings, said in wrong:
        with pytest.raises(DevkitError, match=re.escape(said)):
            script_of(made, **settings)
