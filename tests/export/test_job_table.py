"""[job] and [job.TARGET] of devkit.toml: what wins, where flags are kept, and the place of what is wrong."""

import tomllib

import pytest

from devkit.errors import DevkitError
from devkit.export.job_settings import ExportOptions, describe_setting, read_export_settings, select_flags_to_store
from devkit.export.targets import load_target
from devkit.render.toml_tables import set_toml_values

KUBERNETES = load_target("kubernetes")
SLURM = load_target("slurm")
NOTHING = ExportOptions({}, {})


def options(text, target=KUBERNETES, typed=NOTHING):
    return read_export_settings(tomllib.loads(text), text, target, typed)


def kept_in(text, typed, target=KUBERNETES):
    return {".".join(path): value for path, value in select_flags_to_store(tomllib.loads(text), target, typed).items()}


def test_the_target_wins_over_the_job_and_flags_win_over_both():
    text = '[job]\ngpus = 1\nmodels = "a"\ntime = "1h"\n[job.kubernetes]\ngpus = 2\nmodels = "b"\nnamespace = "n"\n'
    found = options(text, typed=ExportOptions({"models": "c"}, {"namespace": "m"}))
    assert (found.job.gpus, found.job.models, found.job.time, found.target.namespace) == (2, "c", "1h", "m")
    assert options('[job]\ngpus = 1\n[job.slurm]\ngpus = 2\npartition = "p"\n').job.gpus == 1
    found = options('name = "x"\n[target]\ngpus = ["H100"]\n')
    assert (found.job.gpus, found.job.gpu, found.target, found.output) == (1, "", KUBERNETES.settings(), "")


def test_dashes_are_as_good_as_underscores_and_the_folder_has_a_key():
    text = '[job]\nmodels-size = "5Gi"\n[job.kubernetes]\noutput = "k8s"\ndata-size = "6Gi"\n'
    found = options(text)
    assert (found.job.models_size, found.job.data_size, found.output) == ("5Gi", "6Gi", "k8s")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[job]\ngups = 2\n", "2:1: there is no setting 'gups'", id="a misspelled setting"),
        pytest.param("[job]\ngpus = '2'\n", "2:1: gpus must be a whole number", id="a wrong type"),
        pytest.param("[job]\n\n[job.slrum]\na = 1\n", "3:2: there is no target 'slrum'", id="no such target"),
        pytest.param("[job.kubernetes]\n# x\nnamspace = 'a'\n", "3:1: there is no", id="in the target's"),
        pytest.param("[job.kubernetes]\ngpus = 1.5\n", "2:1: gpus must be", id="the job's in the target's"),
        pytest.param("job = 3\n", "1:1: job must be a table", id="no table"),
        pytest.param("[job]\nkubernetes = 3\n", "2:1: job.kubernetes must be a table", id="no inner table"),
        pytest.param("[job]\ngpus = 1\n'gp-us' = 1\n", "3:1: there is no setting 'gp-us'", id="dash inside"),
        pytest.param("[job]\nmodels-size='1'\nmodels_size='1'\n", "is set twice", id="twice in two spellings"),
        pytest.param("[job]\nenv = [1]\n", "2:1: env must be a list of strings", id="a list of numbers"),
        pytest.param('[job.kubernetes]\nnamespace = "a\\nb"\n', "line break", id="a line break in the target's"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(text, said):
    with pytest.raises(DevkitError) as refused:
        options(text)
    assert said in refused.value.message
    assert refused.value.hint


def test_flags_of_the_job_are_kept_for_all_targets_and_storage_and_a_targets_own_for_it_alone():
    job = {"gpus": 2, "env": ("A=1", "B=2"), "models": "hub", "models_size": "5Gi"}
    assert kept_in("", ExportOptions(job, {"namespace": "n"})) == {
        "job.gpus": 2,
        "job.env": ["A=1", "B=2"],
        "job.kubernetes.models": "hub",
        "job.models_size": "5Gi",
        "job.kubernetes.namespace": "n",
    }


def test_a_setting_in_the_targets_table_is_kept_there_as_it_is_spelled():
    text = '[job]\nmodels-size = "1Gi"\ngpus = 1\n[job.kubernetes]\ngpus = 2\ndata-size = "1Gi"\n'
    typed = ExportOptions({"gpus": 4, "data_size": "2Gi", "models_size": "3Gi"}, {})
    assert kept_in(text, typed) == {
        "job.kubernetes.gpus": 4,
        "job.kubernetes.data-size": "2Gi",
        "job.models-size": "3Gi",
    }
    assert kept_in('[job]\ngpus = 2\nenv = ["A=1"]\n', ExportOptions({"gpus": 2, "env": ("A=1",)}, {})) == {}


def test_what_was_kept_is_what_is_read():
    typed = ExportOptions({"gpus": 2, "models": "/a b", "env": ("A=${x}",), "spot": True}, {"partition": "gpu"})
    stored = select_flags_to_store({"job": {}}, SLURM, typed)
    assert all(describe_setting(path, SLURM) for path in stored)
    text = set_toml_values(b"[job]\n", stored, {}, shown_as="devkit.toml").decode()
    assert options(text, SLURM) == options("", SLURM, typed)
