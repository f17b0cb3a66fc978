import pytest

from devkit.facts.values import Release, Unknown
from devkit.probe.engine.toolkit import TOOLKIT_CONFIG, read_toolkit
from tests.cases import cases
from tests.hosts import written

PRINTED = "NVIDIA Container Toolkit CLI version 1.18.1\\ncommit: d34b304\\n"
INSTALLED = f'[[command]]\nargv = ["nvidia-ctk", "--version"]\nout = "{PRINTED}"\n'


def toolkit(tmp_path, files="", command=INSTALLED, more=""):
    return read_toolkit(written(tmp_path, f'{more}\n[env]\nHOME = "/h"\n[files]\n{files}\n{command}'))


def config(text):
    return f"\"{TOOLKIT_CONFIG}\" = '''{text}'''"


@pytest.mark.parametrize(
    ("command", "version"),
    [
        pytest.param(INSTALLED, Release.parse("1.18.1"), id="installed"),
        pytest.param("", None, id="absent"),
        pytest.param(
            INSTALLED.replace("version 1.18.1", "").replace("d34b304", "x"),
            Unknown("nvidia-ctk --version ended with status 0: NVIDIA Container Toolkit CLI \ncommit: x", is_lost=True),
            id="without a version",
        ),
    ],
)
def test_the_toolkits_version_is_read(tmp_path, command, version):
    assert toolkit(tmp_path, command=command).version == version


@cases(
    "text, settings",
    {
        "defaults": ("", ("auto", False, "")),
        "a mode": ('[nvidia-container-runtime]\nmode = "cdi"', ("cdi", False, "")),
        "no cgroups": ("[nvidia-container-cli]\nno-cgroups = true", ("auto", True, "")),
        "a root": ('[nvidia-container-cli]\nroot = "/run/nvidia/driver"', ("auto", False, "/run/nvidia/driver")),
        "a comment says nothing": ("[nvidia-container-cli]\n#no-cgroups = true", ("auto", False, "")),
        "a section of the wrong type": ("nvidia-container-cli = 3", ("auto", False, "")),
    },
)
def test_settings_are_read_with_the_toolkits_defaults(tmp_path, text, settings):
    found = toolkit(tmp_path, config(text))
    assert (found.mode, found.no_cgroups, found.driver_root) == settings


@pytest.mark.parametrize(("text", "is_accepted"), [("", True), ("= false", False), ("= true", True)])
def test_the_toolkit_accepts_the_variable_unless_it_is_told_not_to(tmp_path, text, is_accepted):
    text = text and f"accept-nvidia-visible-devices-envvar-when-unprivileged {text}"
    assert toolkit(tmp_path, config(text)).accepts_variable is is_accepted


def test_a_broken_configuration_is_unknown_and_says_where(tmp_path):
    assert "line 1" in toolkit(tmp_path, config("mode = = 1")).mode.reason


@pytest.mark.parametrize(
    ("text", "error", "registers"),
    [
        pytest.param('{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}', "", True, id="registered"),
        pytest.param('{"runtimes": {"runc-dev": {"path": "runc"}}}', "", False, id="other runtimes only"),
        pytest.param("{}", "", False, id="empty object"),
        pytest.param("", "", False, id="empty file"),
        pytest.param("[]", "the top level is not an object", False, id="a list"),
        pytest.param('{\n  "a": 1,\n}', "line 3, column 1", False, id="a trailing comma"),
        pytest.param("{\n  // note\n}", "line 2, column 3", False, id="a comment"),
    ],
)
def test_each_daemon_file_says_whether_it_registers_the_runtime(tmp_path, text, error, registers):
    (found,) = toolkit(tmp_path, f"\"/etc/docker/daemon.json\" = '''{text}'''").daemon_files
    assert found.registers_nvidia is registers
    assert found.error.startswith(error)
    assert bool(found.error) is bool(error)


def test_a_daemon_file_that_may_not_be_read_is_still_named(tmp_path):
    path = "/etc/docker/daemon.json"
    (found,) = toolkit(tmp_path, f'"{path}" = "{{}}"', more=f'unreadable = ["{path}"]').daemon_files
    assert found.error == ""
    assert found.registers_nvidia == Unknown("this user cannot read it")


def test_a_configuration_that_may_not_be_read_is_not_called_broken(tmp_path):
    found = toolkit(tmp_path, config(""), more=f'unreadable = ["{TOOLKIT_CONFIG}"]').config_error
    assert isinstance(found, Unknown)


@pytest.mark.parametrize(
    ("line", "path", "exists"),
    [
        pytest.param('ldconfig = "@/sbin/ldconfig.real"', "/sbin/ldconfig.real", True, id="there"),
        pytest.param('ldconfig = "@/sbin/ldconfig"', "/sbin/ldconfig", False, id="not there"),
        pytest.param('ldconfig = "/sbin/ldconfig"', "/sbin/ldconfig", None, id="the container's own"),
        pytest.param("", "", True, id="none named, which is the default"),
    ],
)
def test_ldconfig_is_looked_up_on_the_host(tmp_path, line, path, exists):
    found = toolkit(tmp_path, config(f"[nvidia-container-cli]\n{line}") + '\n"/sbin/ldconfig.real" = "ELF"')
    assert found.ldconfig == path
    assert found.ldconfig_exists is exists or (exists is None and isinstance(found.ldconfig_exists, Unknown))


def test_features_that_are_switched_on_are_named(tmp_path):
    text = "[features]\nno-additional-gids-for-device-nodes = true\nallow-cuda-compat-libs-from-container = false"
    assert toolkit(tmp_path, config(text)).features == ("no-additional-gids-for-device-nodes",)


UNIT = '"/lib/systemd/system/nvidia-cdi-refresh.path" = "[Path]"\n'
WANTS = '"/etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.path"'


@pytest.mark.parametrize(
    ("files", "state"),
    [
        pytest.param("", "", id="no such unit"),
        pytest.param(UNIT, "disabled", id="there, and nothing wants it"),
        pytest.param(f'{UNIT}[links]\n{WANTS} = "/lib/systemd/system/nvidia-cdi-refresh.path"', "enabled", id="wanted"),
        pytest.param(
            f'{UNIT}"/dev/null" = ""\n[links]\n"/etc/systemd/system/nvidia-cdi-refresh.path" = "/dev/null"',
            "masked",
            id="masked",
        ),
    ],
)
def test_the_unit_that_renews_cdi_is_read_from_files(tmp_path, files, state):
    assert toolkit(tmp_path, files).cdi_refresh == state


@pytest.mark.parametrize(
    ("nodes", "links"),
    [
        pytest.param(("/dev/nvidiactl", "/dev/char/195:255"), True, id="there"),
        pytest.param(("/dev/nvidiactl", "/dev/char/1:3"), False, id="not there"),
        pytest.param(("/dev/nvidiactl",), None, id="no folder"),
        pytest.param(("/dev/char/1:3",), None, id="no GPU"),
    ],
)
def test_links_by_number(tmp_path, nodes, links):
    found = toolkit(tmp_path, "".join(f'"{node}" = ""\n' for node in nodes)).char_links
    assert found is links or (links is None and isinstance(found, Unknown))


ALL_THERE = "\n".join(
    f'"/usr/bin/{name}" = {{ kind = "file", mode = 0o755 }}' for name in ("crun", "nvidia-container-cli")
)


@cases(
    "text, error",
    {
        "empty": ("", ""),
        "valid": ('[a]\nb = "c"', ""),
        "broken": ('no-cgroups = true"', "not valid TOML"),
        "cut off": ("no-cgroups = ", "not valid TOML"),
        "a boolean": ("[nvidia-container-cli]\nno-cgroups = true", ""),
        "a quoted one": ('[nvidia-container-cli]\nno-cgroups = "true"', "no-cgroups: expected true or false, got"),
        "a number for a mode": ("[nvidia-container-runtime]\nmode = 3", "mode: expected string, got 3"),
        "a text for a list": ('[nvidia-container-runtime]\nruntimes = "runc"', "expected list, got"),
        "a number at the top": ("disable-require = 1", "disable-require: expected"),
    },
)
def test_a_broken_configuration_and_a_value_of_the_wrong_type_are_errors_of_the_settings(tmp_path, text, error):
    found = toolkit(tmp_path, config(text)).config_error
    assert (error in found) if error else found == ""


def test_the_programs_that_the_toolkit_calls_are_looked_up(tmp_path):
    nodes = f"[nodes]\n{ALL_THERE}\n"
    found = toolkit(tmp_path, command=INSTALLED + nodes)
    assert (found.cli_path, found.low_level_runtime) == ("/usr/bin/nvidia-container-cli", "/usr/bin/crun")


@pytest.mark.parametrize(
    ("settings", "low_level"),
    [
        pytest.param("", ("runc", "crun"), id="defaults"),
        pytest.param('[nvidia-container-runtime]\nruntimes = ["/opt/runc"]', ("/opt/runc",), id="a path"),
    ],
)
def test_programs_that_are_not_there_have_no_path(tmp_path, settings, low_level):
    found = toolkit(tmp_path, config(settings))
    assert (found.cli_path, found.low_level_runtime, found.low_level_runtimes) == ("", "", low_level)


DAEMON = '"/proc/7/comm" = "dockerd\\n"\n"/proc/7/environ" = "XDG_CONFIG_HOME=/x\\u0000A=b"\n'
ELSEWHERE = "[nvidia-container-runtime]\nmode = 'cdi'"


@cases(
    "files, env, mode",
    {
        "the daemon's": (f'{DAEMON}"/x/nvidia-container-runtime/config.toml" = """{ELSEWHERE}"""', "", "cdi"),
        "the user's": (f'"/o/c.toml" = """{ELSEWHERE}"""', 'NVIDIA_CTK_CONFIG_FILE_PATH = "/o/c.toml"', "cdi"),
        "this shell's folder is not the daemon's": (
            f'"/x/nvidia-container-runtime/config.toml" = """{ELSEWHERE}"""',
            'XDG_CONFIG_HOME = "/x"',
            "auto",
        ),
    },
)
def test_the_settings_file_is_the_one_that_the_daemon_hands_on(tmp_path, files, env, mode):
    host = written(tmp_path, f'[env]\nHOME = "/h"\n{env}\n[files]\n{files}\n{INSTALLED}')
    assert read_toolkit(host).mode == mode
