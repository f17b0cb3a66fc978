"""What sites have besides Apptainer and Pyxis: conda, lines of their own, Singularity, ready images."""

import pytest

from devkit.export.slurm import render_slurm
from devkit.export.slurm.settings import ContainerRuntime, SlurmSettings

from .tasks import Login, files_of, script_of, task


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


def test_a_sites_ready_image_is_used_as_it_is_and_nothing_is_built(login):
    made = own(image="", is_foreign_image=True)
    settings = SlurmSettings(image_file="$CONTAINERDIR/pytorch-2.4.0.sif")
    rendered = render_slurm(made, settings, "deploy/slurm")
    assert [each.path for each in rendered.artifacts] == ["job.sbatch"]
    assert not any("build" in step for step in rendered.next_steps)
    (login.home / "pytorch-2.4.0.sif").touch()
    done = login.run(rendered.artifacts[0].content.decode(), CONTAINERDIR=str(login.home))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{login.home}/pytorch-2.4.0.sif" in login.calls("apptainer")[0]["words"]
    assert login.run(rendered.artifacts[0].content.decode(), CONTAINERDIR="/none").returncode == 2


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
