"""[job] and [job.TARGET] of devkit.toml: what wins, where flags are kept, and the place of what is wrong."""

import re
import tomllib

import click.testing
import pytest

from devkit.cli.export import export
from devkit.errors import DevkitError
from devkit.export.job_settings import (
    JobSettings,
    StoredSetting,
    describe_setting,
    read_export_settings,
    select_flags_to_store,
)
from devkit.export.kubernetes.settings import AccessMode
from devkit.export.targets import TARGETS, load_target
from devkit.facts.settings import describe_settings
from devkit.render.toml_tables import parse_assignments, set_toml_values

KUBERNETES = load_target("kubernetes")
SLURM = load_target("slurm")


def options(text, target=KUBERNETES, **given):
    return read_export_settings(tomllib.loads(text), text, target, given)


def kept_in(text, target=KUBERNETES, **given):
    return {".".join(path): value for path, value in select_flags_to_store(tomllib.loads(text), target, given).items()}


def test_the_target_wins_over_the_job_and_flags_win_over_both():
    text = '[job]\ngpus = 1\nmodels = "a"\ntime = "1h"\n[job.kubernetes]\ngpus = 2\nmodels = "b"\nnamespace = "n"\n'
    found = options(text, models="c", namespace="m")
    assert (found.job.gpus, found.job.models, found.job.time, found.target.namespace) == (2, "c", "1h", "m")
    # What no flag gave is said with its place.
    assert [str(each) for each in found.stored] == ["gpus 2: devkit.toml:6", "time 1h: devkit.toml:4"]
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
        pytest.param("[job]\ngups = 2\n", "2:1: the setting 'gups' does not exist", id="a misspelled setting"),
        pytest.param("[job]\ngpus = '2'\n", "2:1: gpus must be a whole number", id="a wrong type"),
        pytest.param("[job]\n\n[job.slrum]\na = 1\n", "3:2: the target 'slrum' does not exist", id="no such target"),
        pytest.param("[job.kubernetes]\n# x\nnamspace = 'a'\n", "3:1: the setting", id="in the target's"),
        pytest.param("[job.kubernetes]\ngpus = 1.5\n", "2:1: gpus must be", id="the job's in the target's"),
        pytest.param("job = 3\n", "1:1: job must be a table", id="no table"),
        pytest.param("[job]\nkubernetes = 3\n", "2:1: job.kubernetes must be a table", id="no inner table"),
        pytest.param("[job]\ngpus = 1\n'gp-us' = 1\n", "3:1: the setting 'gp-us' does not exist", id="dash inside"),
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


def test_flags_are_kept_for_this_target_alone_as_its_table_spells_them():
    given = {"gpus": 2, "env": ("A=1", "B=2"), "models_size": "5Gi", "namespace": "n"}
    stored = {"gpus": 2, "env": ["A=1", "B=2"], "models_size": "5Gi", "namespace": "n"}
    assert kept_in("[job]\ngpus = 1\n", **given) == {f"job.kubernetes.{name}": value for name, value in stored.items()}
    text = '[job]\ngpus = 4\n[job.kubernetes]\ngpus = 2\ndata-size = "1Gi"\n'
    assert kept_in(text, gpus=4, data_size="2Gi") == {"job.kubernetes.gpus": 4, "job.kubernetes.data-size": "2Gi"}
    assert kept_in('[job.kubernetes]\ngpus = 2\nenv = ["A=1"]\n', gpus=2, env=("A=1",)) == {}


def test_what_was_kept_is_what_is_read_and_no_other_target_sees_it():
    given = {"gpus": 2, "models": "/a b", "env": ("A=${x}",), "spot": True, "partition": "gpu"}
    stored = select_flags_to_store({"job": {}}, SLURM, given)
    assert all(describe_setting(path[-1], SLURM) for path in stored)
    text = set_toml_values(b"[job]\n", stored, {}, shown_as="devkit.toml").decode()
    kept, typed = options(text, SLURM), options("", SLURM, **given)
    assert (kept.job, kept.target) == (typed.job, typed.target)
    assert options(text, KUBERNETES) == options("", KUBERNETES)


def assign(*texts):
    return parse_assignments(texts, JobSettings, KUBERNETES.settings, without="command")


def test_settings_without_a_flag_are_assigned_and_others_are_refused():
    texts = ("shm=4Gi", "label=a=b", "label=c=d", "host-network=false", "user=7", "access_mode=ReadWriteMany")
    assert assign(*texts) == {
        **{"shm": "4Gi", "label": ("a=b", "c=d"), "host_network": False, "user": 7},
        "access_mode": AccessMode.MANY_NODES,
    }
    assert assign("host-network=true") == {"host_network": True}
    wrong = {
        "shm": "expected KEY=VALUE",
        "command=x": "command is not a setting",
        "labels=a=b": "labels is not a setting",
    }
    wrong |= {"user=me": "user must be", "host_network=perhaps": "host_network must be", "access_mode=All": "must be"}
    for text, said in wrong.items():
        with pytest.raises(DevkitError, match=said) as refused:
            assign(text)
        assert refused.value.hint


@pytest.mark.parametrize(
    ("value", "said"), [(True, "true"), (2, "2"), ("10:00", "10:00"), (("python", "a b.py"), "python 'a b.py'")]
)
def test_a_stored_setting_is_said_as_it_is_given(value, said):
    assert str(StoredSetting("x", value, "devkit.toml:3")) == f"x {said}: devkit.toml:3"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_at_most_35_flags_in_sections_and_every_other_setting_is_listed(name):
    command = export.get_command(None, name)
    flags = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    assert len(flags) <= 35
    spelled = [flag for each in flags for flag in (*each.opts, *each.secondary_opts)]
    assert len(spelled) == len(set(spelled))
    shown = click.testing.CliRunner().invoke(command, ["--help"], prog_name=name, max_content_width=200).output
    for section in ("What runs", "Machines", f"Only for {name}", "Options"):
        assert f"{section}:\n" in shown
    for each in {*describe_settings(JobSettings), *describe_settings(load_target(name).settings)} - {"command"}:
        assert re.search(rf"^  (--{each.replace('_', '-')}|{each})\b", shown, re.MULTILINE), each
