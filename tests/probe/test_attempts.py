"""Programs that fail: their words, and the variables without which they work."""

import json
import stat

import pytest

from devkit.facts.engine import ResolvedService
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Unknown
from devkit.probe.attempts import find_assignments, find_error_lines, run_or_explain
from devkit.probe.engine.client import read_clients
from devkit.probe.engine.compose_config import read_compose_config
from devkit.probe.engine.daemon_files import find_daemon_file, find_daemon_pid, read_daemon_files
from devkit.probe.engine.last_words import add_settings, find_named_settings, read_last_words
from devkit.probe.engine.program_trials import read_program_failures
from devkit.probe.host import LocalHost
from devkit.probe.project.places import list_instructions
from devkit.probe.project.reader import read_project
from tests.cases import cases
from tests.hosts import machine, written


class CountingHost(LocalHost):
    def __init__(self):
        self.runs = 0

    def run(self, argv, **settings):
        self.runs += 1
        return super().run(argv, **settings)


@cases(
    "printed, words",
    {
        "one line": ("Error: no such thing\n", ("Error: no such thing",)),
        "lines around it": ("starting\nfailed to start daemon: x\nbye\n", ("failed to start daemon: x",)),
        "Go's log, where the level counts": (
            'time="2026-01-01" level=warning msg="this failed, no matter"\n'
            'time="2026-01-01" level=fatal msg="cannot load" error="open \\"/x\\": denied"\n',
            ('cannot load: open "/x": denied',),
        ),
        "no error at all: the last line": ("all went well\n", ("all went well",)),
        "a trace": ("panic: index\n\ngoroutine 1 [running]:\n\t/src/x.go:12 +0x1\n", ("panic: index",)),
        "silence": ("", ()),
    },
)
def test_the_error_lines_of_a_program_are_its_words(printed, words):
    assert find_error_lines(printed) == words


def needs(*variables):
    """A program that works once all these variables are gone."""
    return ("sh", "-c", " && ".join(f'[ -z "${name}" ]' for name in variables) + " || { echo Error: bad >&2; exit 3; }")


@pytest.mark.parametrize("guilty", [("AAA",), ("ZZZ",), ("AAA", "MMM"), ("AAA", "MMM", "ZZZ")])
def test_the_variables_without_which_a_program_works_are_found_in_few_runs(monkeypatch, guilty):
    for name in ("AAA", "MMM", "ZZZ", *(f"V{number}" for number in range(60))):
        monkeypatch.setenv(name, "1")
    host = CountingHost()
    done, failure = run_or_explain(host, needs(*guilty), deadline_s=30.0, name="probe")
    assert (done.code, failure.words, failure.works_without) == (3, ("Error: bad",), guilty)
    assert host.runs <= 2 + len(guilty) * 9


def test_a_program_that_works_is_run_once_and_one_that_always_fails_twice(monkeypatch):
    monkeypatch.setenv("AAA", "1")
    host = CountingHost()
    assert run_or_explain(host, ("true",), deadline_s=5.0)[1] is None
    assert host.runs == 1
    _, failure = run_or_explain(host, ("false",), deadline_s=5.0)
    assert (failure.works_without, host.runs) == ((), 3)


def test_the_line_of_a_start_up_file_that_sets_the_variable_is_named(tmp_path):
    host = written(
        tmp_path,
        """
        [env]
        HOME = "/home/dev"
        [files]
        "/home/dev/.bashrc" = "alias x=y\\nexport LD_PRELOAD=/x.so\\n# LD_PRELOAD=no\\nLD_PRELOADED=1\\n"
        "/etc/profile.d/cuda.sh" = "LD_PRELOAD=/y.so"
        """,
    )
    assert list(find_assignments(host, ("LD_PRELOAD",))) == ["/home/dev/.bashrc:2", "/etc/profile.d/cuda.sh:1"]


FATAL = 'level=info msg=\\"Starting up\\"\\nfailed to start daemon: User namespaces: no such user \\"remap\\"\\n'


@cases(
    "log, words",
    {
        "did not start": (FATAL, ('failed to start daemon: User namespaces: no such user "remap"',)),
        "stopped later": (FATAL + 'level=info msg=\\"Starting up\\"\\nlevel=info msg=\\"stopped\\"\\n', None),
        "an empty log": ("", None),
    },
)
def test_dockerds_log_says_why_it_did_not_start(tmp_path, log, words):
    host = written(
        tmp_path,
        f"""
        [files]
        "/var/log/docker.log" = "{log}"
        "/etc/docker/daemon.json" = '{{"userns-remap": "remap", "log-level": "info"}}'
        """,
    )
    said = read_last_words(host)
    assert [each.words for each in said] == ([words] if words else [])
    assert [each.settings for each in said] == ([("userns-remap in /etc/docker/daemon.json",)] if words else [])


def test_a_failed_unit_speaks_by_its_journal_and_a_masked_one_by_its_state(tmp_path):
    show = "--property=LoadState,ActiveState,Result,ExecMainStatus"
    journal = '"-b", "_SYSTEMD_UNIT=docker.service", "-n", "60", "-o", "cat", "--no-pager"'
    host = written(
        tmp_path,
        f"""
        [[command]]
        argv = ["systemctl", "show", "containerd.service", "{show}"]
        out = "LoadState=masked\\nActiveState=inactive\\n"
        [[command]]
        argv = ["systemctl", "show", "docker.service", "{show}"]
        out = "LoadState=loaded\\nActiveState=failed\\nResult=exit-code\\nExecMainStatus=1\\n"
        [[command]]
        argv = ["journalctl", {journal}]
        out = "failed to start containerd: timeout\\n"
        """,
    )
    said = {each.program: each.words for each in read_last_words(host)}
    assert said == {
        "containerd.service": ("Unit containerd.service is masked",),
        "docker.service": ("failed to start containerd: timeout",),
    }


def test_a_settings_file_that_the_words_name_is_what_to_correct(tmp_path):
    host = written(
        tmp_path,
        """
        [files]
        "/etc/containers/containers.conf" = "[engine"
    """,
    )
    failure = ProgramFailure("podman", ('decode "/etc/containers/containers.conf": toml: line 1; see /usr/no.conf',))
    assert add_settings(host, failure, ()).settings == ("/etc/containers/containers.conf",)


@pytest.mark.parametrize("flag", ["--config-file=/etc/docker/gpu.json", "--config-file /etc/docker/gpu.json"])
def test_the_daemons_command_line_says_which_settings_file_it_reads(tmp_path, flag):
    host = written(
        tmp_path,
        f"""
        [files]
        "/lib/systemd/system/docker.service" = "[Service]\\nExecStart=/usr/bin/dockerd {flag} -H fd://\\n"
        "/etc/docker/daemon.json" = "{{ no JSON"
        "/etc/docker/gpu.json" = '{{"runtimes": {{"nvidia": {{}}}}}}'
        """,
    )
    assert find_daemon_file(host) == "/etc/docker/gpu.json"
    assert [(file.path, file.error, file.registers_nvidia) for file in read_daemon_files(host)] == [
        ("/etc/docker/gpu.json", "", True)
    ]


def test_a_dockerd_that_validates_a_file_is_no_daemon(tmp_path):
    host = written(
        tmp_path,
        """
        [files]
        "/proc/7/comm" = "dockerd"
        "/proc/7/cmdline" = "/usr/bin/dockerd\\u0000--validate"
        "/proc/9/comm" = "dockerd"
        "/proc/8/comm" = "dockerd\\n"
        "/proc/8/cmdline" = ""
        "/proc/9/cmdline" = "/usr/bin/dockerd"
        """,
    )
    assert find_daemon_pid(host) == "9"


def test_the_daemon_of_the_system_is_told_from_another_one_beside_it(tmp_path):
    daemons = """
        [files]
        "/proc/7/comm" = "dockerd"
        "/proc/7/cmdline" = "dockerd\\u0000--config-file=/elsewhere.json"
        "/proc/9/comm" = "dockerd"
        "/proc/9/cmdline" = "dockerd"
        """
    host = written(tmp_path, f'{daemons}"/run/docker.pid" = "9\\n"\n')
    assert find_daemon_file(host) == "/etc/docker/daemon.json"
    killed = written(tmp_path, f'{daemons}"/run/docker.pid" = "8\\n"\n')
    assert find_daemon_file(killed) == "/elsewhere.json"


def test_programs_that_cannot_run_are_told_from_those_that_refuse_their_arguments(tmp_path, monkeypatch):
    loader = '#!/bin/sh\necho "$0: libc.so.6: version \\`GLIBC_2.99\' not found (required by $0)" >&2\nexit 1\n'
    asked = "#!/bin/sh\necho 'flag provided but not defined: -version' >&2\nexit 1\n"
    programs = {"runc": "#!/bin/sh\nexit 2\n", "crun": "#!/no/such/shell\n", "nvidia-ctk": "no program"}
    for name, text in (programs | {"nvidia-container-cli": loader, "nvidia-cdi-hook": asked}).items():
        (tmp_path / name).write_text(text, encoding="ascii")
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("devkit.probe.engine.program_trials.detect_container", lambda _host: "")
    failures = read_program_failures(LocalHost())
    statuses = {"crun": 127, "nvidia-ctk": 126, "nvidia-container-cli": 1}
    assert {each.program.rpartition("/")[2]: each.status for each in failures} == statuses


def test_what_the_projects_files_need_is_tried(tmp_path, monkeypatch):
    (tmp_path / ".gitattributes").write_text("*.safetensors filter=lfs\n", encoding="ascii")
    (tmp_path / "compose.yaml").write_text("x: ${SSH_AUTH_SOCK}\n", encoding="ascii")
    (tmp_path / "ssh-add").write_text("#!/bin/sh\nexit $CODE\n", encoding="ascii")
    (tmp_path / "ssh-add").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("devkit.probe.engine.program_trials.detect_container", lambda _host: "")
    monkeypatch.setattr("devkit.probe.engine.program_trials.PROGRAMS", ())

    def failing(code, project):
        monkeypatch.setenv("CODE", code)
        return {each.program: each.needed_by for each in read_program_failures(LocalHost(), project=project)}

    assert failing("2", str(tmp_path)) == {"git-lfs": ".gitattributes", "ssh-add": "compose.yaml"}
    assert failing("1", str(tmp_path)) == {"git-lfs": ".gitattributes"}, "an agent without keys answers"
    assert failing("2", str(tmp_path.parent)) == {}


def test_a_healthy_machine_has_no_failed_program():
    assert read_program_failures(machine("ubuntu-4090-ok")) == ()


def plugin(folder, text):
    """A Compose plugin, a script of these lines, and what is read of the project beside it."""
    path = folder / "cli-plugins/docker-compose"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    path.chmod(stat.S_IRWXU)
    (folder / "compose.yaml").write_text("services: {}\n", encoding="ascii")


CONFIG = {
    "services": {
        "t": {
            "runtime": "nvidia",
            "shm_size": "8",
            "devices": [{"source": "nvidia.com/gpu=1"}, {"source": "/dev/fuse"}],
            "deploy": {
                "resources": {
                    "limits": {"memory": "2147483648"},
                    "reservations": {"devices": [{"capabilities": ["gpu"], "device_ids": ["2"]}]},
                }
            },
        },
        "g": {"gpus": [{"count": -1}]},
        "web": {"image": "x"},
    }
}


def test_what_compose_resolves_is_read(tmp_path, monkeypatch):
    plugin(tmp_path, f"test -e compose.yaml || exit 1\ncat <<'EOF'\n{json.dumps(CONFIG)}\nEOF")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("COMPOSE_FILE", raising=False)
    assert read_compose_config(LocalHost(), project=str(tmp_path)) == (
        ResolvedService("t", "nvidia", ("2", "nvidia.com/gpu=1"), 0, 8, 2 << 30),
        ResolvedService("g", "", (), -1, None, None),
        ResolvedService("web", "", (), 0, None, None),
    )


def test_compose_resolves_the_files_that_the_dev_container_names(tmp_path, monkeypatch):
    plugin(
        tmp_path,
        """[ "$1$2$3$4" = "-f$PWD/compose.yaml-f$PWD/.devcontainer/dev.yaml" ] && echo '{"services": {"a": {}}}'""",
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("COMPOSE_FILE", "/other.yaml")
    (tmp_path / ".devcontainer").mkdir()
    names = '["${localWorkspaceFolder}/compose.yaml", "dev.yaml"]'
    (tmp_path / ".devcontainer/devcontainer.json").write_text(f'{{"dockerComposeFile": {names}}} // both\n')
    assert read_compose_config(LocalHost(), project=str(tmp_path)) == (ResolvedService("a", "", (), 0, None, None),)


def test_paths_of_each_compose_file_count_from_the_folder_of_the_first(tmp_path, monkeypatch):
    project = tmp_path / "project"
    plugin(
        tmp_path,
        f"""echo '{{"services": {{"a": {{"build": {{"context": "{tmp_path}", "dockerfile": "dev/Dockerfile"}}}}}}}}'""",
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("COMPOSE_FILE", raising=False)
    (project / "dev").mkdir(parents=True)
    (project / "dev/Dockerfile").write_text("FROM x\nCOPY kept /\n")
    (project / "compose.yaml").write_text("services: {a: {image: x}}")
    (project / "dev/more.yaml").write_text("services: {a: {build: {context: .., dockerfile: dev/Dockerfile}}}")
    names = '["${localWorkspaceFolder}/compose.yaml", "dev/more.yaml"]'
    (project / ".devcontainer.json").write_text(f'{{"dockerComposeFile": {names}, "service": "a"}}')
    refused = read_compose_config(LocalHost(), project=str(project))
    assert refused.words == (
        f"Compose takes this path from the folder of compose.yaml, so that .. is {tmp_path}, which has no dev/Dockerfile",
    )
    assert refused.settings[0].endswith('write "." in place of "..")')
    (project / "dev/more.yaml").write_text("services: {a: {build: {context: ., dockerfile: dev/Dockerfile}}}")
    (service,) = read_project(LocalHost(), project=str(project)).services
    assert (service.build.context, service.build.dockerfile) == (".", "dev/Dockerfile")
    (copy,) = (each for each, _ in list_instructions(LocalHost(), str(project)) if each.name == "COPY")
    assert copy.note == "kept is not in the build context, the project's folder"


def test_a_project_that_compose_refuses_is_told_in_its_words(tmp_path, monkeypatch):
    plugin(
        tmp_path,
        'test -z "$COMPOSE_PROFILES" && echo "{\\"services\\": {}}" || { echo "no such profile" >&2; exit 1; }',
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("COMPOSE_FILE", raising=False)
    assert read_compose_config(LocalHost(), project=str(tmp_path)) == ()
    monkeypatch.setenv("COMPOSE_PROFILES", "gpu")
    refused = read_compose_config(LocalHost(), project=str(tmp_path))
    assert (refused.words, refused.works_without) == (("no such profile",), ("COMPOSE_PROFILES",))
    assert refused.read_from == "docker compose config"


def test_a_podman_compose_that_cannot_print_what_it_resolves_accuses_no_project(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("devkit.probe.engine.client.COMPOSE_PLUGIN_FOLDERS", ())
    (tmp_path / "compose.yaml").write_text("services: {}")
    (tmp_path / "podman-compose").write_text("#!/bin/sh\necho \"error: invalid choice: 'config'\" >&2; exit 2\n")
    (tmp_path / "podman-compose").chmod(0o755)
    found = read_compose_config(LocalHost(), project=str(tmp_path))
    assert isinstance(found, Unknown)
    assert found.is_lost


@pytest.mark.parametrize(
    ("driver", "guilty"),
    [
        pytest.param("docker", ("BUILDX_BUILDER",), id="a builder of another context"),
        pytest.param("docker-container", (), id="one in a container, which would be started"),
    ],
)
def test_a_builder_that_this_shell_selects_is_tried(tmp_path, monkeypatch, driver, guilty):
    (tmp_path / "docker").write_text(f"""#!/bin/sh
case "$*" in
*inspect*) printf 'Name:   x\\nDriver: {driver}\\n\\nNodes:\\n' ;;
*du*) test -z "$BUILDX_BUILDER" || {{ echo 'ERROR: switch to context "default"' >&2; exit 1; }} ;;
*) echo 'Docker version 28.5.2' ;;
esac
""")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("BUILDX_BUILDER", "other")
    failure = read_clients(LocalHost()).named("docker").failure
    assert (failure.works_without if failure else ()) == guilty


def test_a_variable_whose_value_compose_repeats_is_named_where_nothing_works_without_it(tmp_path, monkeypatch):
    plugin(tmp_path, "echo 'stat /old/compose.yaml: no such file or directory' >&2; exit 14")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("COMPOSE_FILE", "/old/compose.yaml")
    refused = read_compose_config(LocalHost(), project=str(tmp_path))
    assert refused.settings == ("COMPOSE_FILE in this shell",)


def test_a_setting_whose_key_is_quoted_comes_before_one_whose_value_is_repeated():
    said = "failed to set log opts: unknown log opt 'max-sizes' for json-file log driver"
    settings = [("d.json", "log-driver", "json-file"), ("d.json", "log-opts.max-sizes", "10m")]
    assert find_named_settings(said, settings) == ("log-opts.max-sizes in d.json", "log-driver in d.json")
