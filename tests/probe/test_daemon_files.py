import json

from devkit.facts.values import Unknown
from devkit.probe.engine.daemon_files import read_daemon_addresses, read_daemon_files, read_daemon_flags
from tests.cases import cases
from tests.hosts import written

PATH = "/etc/docker/daemon.json"
DOCKERD = '"/usr/bin/dockerd" = { kind = "file", mode = 0o755 }'
REFUSED = "unable to configure the Docker daemon with file /etc/docker/daemon.json: "
UNIT = "/lib/systemd/system/docker.service"
STARTED = "[Service]\nExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $OPTIONS\n"
OVERRIDE = "/etc/systemd/system/docker.service.d/override.conf"


def machine(tmp_path, files, *, flags=(), refusal=None, nodes=DOCKERD):
    text = "".join(f"{json.dumps(path)} = {json.dumps(content)}\n" for path, content in files.items())
    command = ""
    if refusal is not None:
        argv = json.dumps(["/usr/bin/dockerd", "--validate", *flags, f"--config-file={PATH}"])
        code = 1 if refusal else 0
        command = f"[[command]]\nargv = {argv}\ncode = {code}\nerr = {json.dumps(refusal)}\n"
    return written(tmp_path, f"[files]\n{text}\n[nodes]\n{nodes}\n{command}")


def read(tmp_path, content, **changes):
    (found,) = read_daemon_files(machine(tmp_path, {PATH: content}, **changes))
    return found


@cases(
    "refusal, error",
    {
        "accepted": ("", ""),
        "an unknown key": (
            f"{REFUSED}the following directives don't match any configuration option: foo",
            "the following directives don't match any configuration option: foo",
        ),
        "a value of the wrong type": (
            f"{REFUSED}invalid JSON: json: cannot unmarshal number into Go struct field Config.data-root of type string",
            "invalid JSON: json: cannot unmarshal number into Go struct field Config.data-root of type string",
        ),
        "what devkit's own PATH causes": (
            f"{REFUSED}merged configuration validation from file and command line flags failed:"
            " invalid userland-proxy-path: userland-proxy is enabled, but userland-proxy-path is not set",
            "",
        ),
        "a daemon that cannot say": ("unknown flag: --validate", ""),
    },
)
def test_what_dockerd_says_of_its_file_is_the_error(tmp_path, refusal, error):
    assert read(tmp_path, '{"a": 1}', refusal=refusal).error == error


def test_without_a_daemon_on_this_side_nothing_is_asked(tmp_path):
    assert read(tmp_path, '{"foo": 1}', nodes="").error == ""


@cases(
    "content, error",
    {
        "nothing registers it": ({"default-runtime": "nvidia"}, "'nvidia' does not exist"),
        "registered": ({"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "x"}}}, ""),
        "built in": ({"default-runtime": "runc"}, ""),
        "a shim of containerd": ({"default-runtime": "io.containerd.runsc.v1"}, ""),
        "a path": ({"default-runtime": "/usr/bin/crun"}, ""),
    },
)
def test_a_default_runtime_is_registered(tmp_path, content, error):
    found = read(tmp_path, json.dumps(content), refusal="").error
    assert (error in found) if error else found == ""


def test_a_default_runtime_may_be_registered_by_a_flag(tmp_path):
    files = {
        PATH: '{"default-runtime": "nvidia"}',
        UNIT: "ExecStart=/usr/bin/dockerd --add-runtime=nvidia=/usr/bin/nv\n",
    }
    (found,) = read_daemon_files(machine(tmp_path, files))
    assert found.error == ""


def test_a_folder_in_the_files_place_is_no_file(tmp_path):
    (found,) = read_daemon_files(machine(tmp_path, {f"{PATH}/x": ""}))
    assert found.error.startswith("it is a folder")


def test_the_flags_of_the_unit_stand_beside_the_file(tmp_path):
    flags = ("-H", "fd://", "--containerd=/run/containerd/containerd.sock")
    refusal = f"{REFUSED}the following directives are specified both as a flag and in the configuration file: hosts"
    files = {PATH: '{"hosts": ["tcp://0.0.0.0:2375"]}', UNIT: STARTED}
    (found,) = read_daemon_files(machine(tmp_path, files, flags=flags, refusal=refusal))
    assert found.error.endswith("in the configuration file: hosts")


@cases(
    "files, flags",
    {
        "of the unit": ({UNIT: STARTED}, ("-H", "fd://", "--containerd=/run/containerd/containerd.sock")),
        "overridden": ({UNIT: STARTED, OVERRIDE: "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd\n"}, ()),
        "over two lines": ({UNIT: "ExecStart=/usr/bin/dockerd \\\n  --debug\n"}, ("--debug",)),
        "of the process": ({"/proc/9/comm": "dockerd\n", "/proc/9/cmdline": "dockerd\0--debug\0"}, ("--debug",)),
        "of the process where no systemd starts it": (
            {UNIT: STARTED, "/proc/9/comm": "dockerd\n", "/proc/9/cmdline": "dockerd\0--debug\0"},
            ("--debug",),
        ),
        "of the unit where systemd runs": (
            {
                UNIT: STARTED,
                "/run/systemd/system/x": "",
                "/proc/9/comm": "dockerd\n",
                "/proc/9/cmdline": "dockerd\0-D\0",
            },
            ("-H", "fd://", "--containerd=/run/containerd/containerd.sock"),
        ),
        "none": ({}, ()),
    },
)
def test_the_daemons_flags(tmp_path, files, flags):
    assert read_daemon_flags(machine(tmp_path, files)) == flags


def test_a_file_that_may_not_be_read_is_unknown(tmp_path):
    text = f'unreadable = ["{PATH}"]\n[files]\n"{PATH}" = "{{}}"\n'
    (found,) = read_daemon_files(written(tmp_path, text))
    assert found.registers_nvidia == Unknown("this user cannot read it")


@cases(
    "files, addresses",
    {
        "of the file": ({PATH: '{"hosts": ["tcp://127.0.0.1:2375"]}'}, ("tcp://127.0.0.1:2375",)),
        "of the unit": ({UNIT: STARTED}, ("fd://",)),
        "in one word": ({UNIT: "ExecStart=/usr/bin/dockerd --host=unix:///x\n"}, ("unix:///x",)),
        "a file that does not parse": ({PATH: "{"}, ()),
        "none": ({}, ()),
    },
)
def test_the_addresses_that_the_daemon_was_told(tmp_path, files, addresses):
    assert read_daemon_addresses(machine(tmp_path, files)) == addresses
