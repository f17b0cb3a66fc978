"""What a job asks Slurm for, and what it is refused for before Slurm sees it."""

import pytest

from devkit.errors import DevkitError
from devkit.export.slurm import TARGET, SlurmSettings, format_enroot_reference, quote_folder, render_slurm
from devkit.export.slurm.settings import ContainerRuntime, GpuRequestStyle, validate_job_name
from devkit.export.task import Accelerator
from devkit.solver.plan import Vendor

from .tasks import GIB, files_of, script_of, task


def options_of(made, **settings):
    """The options in the script's #SBATCH lines."""
    lines = script_of(made, **settings).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def notes(made, **settings):
    return render_slurm(made, SlurmSettings(**settings), "deploy/slurm").notes


def with_gpu(name, count=1, **changes):
    gpus = Accelerator(vendor=Vendor.NVIDIA, name=name, count=count, memory_bytes=0)
    return task(accelerator=gpus, **changes)


def test_every_option_is_one_that_was_decided():
    assert options_of(task(nodes=2, gpus=8)) == [
        "--job-name=my-job",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--mem=24G",
        "--gres=gpu:a100:8",
        "--time=1-00:00:00",
        "--signal=TERM@120",
        "--requeue",
        "--open-mode=append",
        "--output=%x-%j.out",
    ]


def test_the_settings_of_the_site_become_sbatch_options_as_written():
    site = {"account": "team", "partition": "gpu,long"}
    more = ("--constraint=gpupod&[a100*2|h100]", "--exclusive", "--mail-user=me@example.org", "--output=logs/%x.txt")
    options = options_of(task(), **site, sbatch=more)
    assert {f"--{name}={value}" for name, value in site.items()} <= set(options)
    assert tuple(options[-4:]) == more
    assert sum(each.startswith("--output=") for each in options) == 1


def test_a_gpu_is_requested_by_its_usual_short_name_with_a_note_unless_the_site_has_its_own():
    names = {
        "A100 80GB": "a100",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti",
        "Tesla V100 SXM2 32GB": "v100",
        "RTX A6000": "rtxa6000",
    }
    for name, kind in names.items():
        made = with_gpu(name, 2)
        assert f"--gres=gpu:{kind}:2" in options_of(made)
        assert f"--gpus-per-node={kind}:2" in options_of(made, gpu_request=GpuRequestStyle.GPUS_PER_NODE)
        assert any(f"is assumed to call the GPU {kind}:" in note for note in notes(made))
    said = (("", "", "gpu:1"), ("H100", "any", "gpu:1"), ("H100 MIG 3g.40gb", "3g.40gb", "gpu:3g.40gb:1"))
    for name, gpu_type, request in said:
        assert f"--gres={request}" in options_of(with_gpu(name), gpu_type=gpu_type)
        assert not any("is assumed to call" in note for note in notes(with_gpu(name), gpu_type=gpu_type))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "gpu\n#SBATCH --uid=0"}, "--partition 'gpu\\\\n#SBATCH --uid=0' is not valid"),
        ({"account": "a b"}, "--account 'a b' is not valid"),
        ({"module": ("gcc; rm -rf /",)}, "--module 'gcc; rm -rf /' is not valid"),
        ({"gpu_type": "a100:2"}, "--set gpu_type 'a100:2' is not valid"),
        ({"sbatch": ("-x node",)}, "--sbatch '-x node' is not valid"),
        ({"sbatch": ("--array=0-3",)}, "--sbatch --array=0-3 is set by devkit itself"),
        ({"venv": "/opt/venv"}, "--set venv is not used with --flavor apptainer"),
        ({"venv": "env", "flavor": ContainerRuntime.NONE}, "--set venv 'env' is not an absolute path"),
        ({"requeues": -1}, "--set requeues is -1, which is below 0"),
        ({"image_file": "a.sif"}, "image_file 'a.sif' is not an absolute path"),
        ({"conda": "a b"}, "--set conda 'a b' is not valid"),
        ({"conda": "x"}, "--set conda is for --flavor none"),
        ({"srun_processes": True}, "would both start the processes"),
        ({"image_file": "/a:b.sif"}, "contains ':'"),
    ],
)
def test_what_would_end_a_line_or_mean_something_else_is_refused_in_one_line(settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        files_of(task(), **settings)
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_memory_is_rounded_up_to_what_slurm_counts_in_and_what_it_cannot_express_is_refused():
    for memory, option in {24 * GIB: "24G", GIB // 2: "512M", 1: "1M", GIB + 1: "1025M"}.items():
        assert f"--mem={option}" in options_of(task(memory_bytes=memory))
    with pytest.raises(DevkitError, match="--set grace of 65536 s is longer than Slurm's longest notice"):
        script_of(task(grace_s=65536))
    assert "--signal=TERM@65535" in options_of(task(grace_s=65535))
    with pytest.raises(DevkitError, match=r"each site chooses Slurm's name for H100 MIG 3g\.40gb"):
        script_of(with_gpu("H100 MIG 3g.40gb"))


def test_of_a_folder_only_variables_mean_anything_to_the_shell():
    words = {
        "/data": '"/data"',
        "~/data": '"$HOME/data"',
        "$SCRATCH/a b": '"${SCRATCH}/a b"',
        "${SCRATCH}/x": '"${SCRATCH}/x"',
        "/a/$USER/b": '"/a/${USER}/b"',
        "/a/$(id)/`id`": '"/a/\\$(id)/\\`id\\`"',
        "/a/${X%$(id)}": '"/a/\\${X%\\$(id)}"',
        '/a/"b"\\c': '"/a/\\"b\\"\\\\c"',
        "/a/5$": '"/a/5\\$"',
    }
    assert {text: quote_folder(text, "--data") for text in words} == words
    # Others depend on where the job starts, or cannot be mounted.
    for text in ("data", "./data", "a/$HOME", "/a:b", "/a,b", "/a\nb"):
        with pytest.raises(DevkitError):
            quote_folder(text, "--data")


def test_enroot_puts_a_number_sign_behind_the_registry_and_has_no_form_for_a_digest():
    names = {
        "ghcr.io/team/image:1": "ghcr.io#team/image:1",
        "localhost/image": "localhost#image",
        "registry:5000/image:1": "registry:5000#image:1",
        "team/image:1": "team/image:1",
        "ubuntu:24.04": "ubuntu:24.04",
    }
    assert {image: format_enroot_reference(image) for image in names} == names
    with pytest.raises(DevkitError, match="has a digest"):
        format_enroot_reference("ghcr.io/team/image@sha256:0")


def test_names_of_jobs_are_those_of_files():
    for name in ("chess_finetune", "pm-crop64", "Run.1"):
        assert f"--job-name={name}" in options_of(task(name=validate_job_name(name, "--name")))
    for name in ("a b", "", "x/y", "-a", "$(id)"):
        with pytest.raises(DevkitError, match="is not a valid job name"):
            validate_job_name(name, "--name")


def test_next_steps_make_the_image_ask_when_the_job_would_start_and_submit_it():
    steps = render_slurm(task(), SlurmSettings(), "deploy/slurm").next_steps
    assert steps == (
        "sh deploy/slurm/build-image.sh",
        "sbatch --test-only deploy/slurm/job.sbatch",
        "sbatch deploy/slurm/job.sbatch",
        "squeue --me",
    )
    settings = SlurmSettings(flavor=ContainerRuntime.PYXIS, image_file="~/i.sqsh")
    pyxis = render_slurm(task(), settings, "deploy/slurm").next_steps
    assert pyxis[0] == "enroot import --output \"$HOME/i.sqsh\" 'docker://registry.example#team/image:1'"
    needs = {flavor: TARGET.needs_image(SlurmSettings(flavor=flavor)) for flavor in ContainerRuntime}
    assert [flavor for flavor, does in needs.items() if not does] == [ContainerRuntime.NONE]
    assert not TARGET.needs_image(SlurmSettings(image_file="$SITE/ready.sif"))
