import pytest

from devkit.facts.model import Platform
from devkit.probe.machine.operating_system import read_kernel_and_machine, read_platform, read_system
from tests.hosts import written

KERNEL = '[files]\n"/proc/sys/kernel/osrelease" = "{0}\\n"\n'
DXG = '[nodes]\n"/dev/dxg" = {{ kind = "character" }}\n'
UNAME = '[[command]]\nargv = ["uname", "-s", "-r", "-m"]\nout = "{0}"\n'


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        pytest.param(KERNEL.format("6.8.0-87-generic"), Platform.LINUX, id="plain Linux"),
        pytest.param(KERNEL.format("5.15.167.4-microsoft-standard-WSL2"), Platform.WSL2, id="WSL 2"),
        pytest.param(KERNEL.format("4.4.0-19041-Microsoft"), Platform.WSL1, id="WSL 1"),
        pytest.param(
            '[env]\nWSL_DISTRO_NAME = "x"\n' + KERNEL.format("6.6.0-mine") + DXG.format(),
            Platform.WSL2,
            id="own kernel",
        ),
        pytest.param(
            '[env]\nWSL_DISTRO_NAME = "x"\n' + KERNEL.format("6.6.0-mine"),
            Platform.LINUX,
            id="own kernel, no GPU device",
        ),
        pytest.param(KERNEL.format("6.6.0-azure") + DXG.format(), Platform.LINUX, id="the device without other signs"),
        pytest.param(UNAME.format("Darwin 24.6.0 arm64"), Platform.MACOS, id="macOS"),
        pytest.param('[env]\nOS = "Windows_NT"\n', Platform.WINDOWS, id="Windows"),
        pytest.param(
            '[env]\nOS = "Windows_NT"\n' + KERNEL.format("6.8.0"), Platform.LINUX, id="a leaked Windows variable"
        ),
    ],
)
def test_the_platform_is_known_by_its_kernel(tmp_path, text, platform):
    assert read_platform(written(tmp_path, text)) is platform


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        pytest.param("Linux 6.8.0 x86_64", ("6.8.0", "x86_64"), id="Linux"),
        pytest.param("Darwin 24.6.0 arm64", ("24.6.0", "aarch64"), id="Apple's name for aarch64"),
        pytest.param("", ("", ""), id="no answer"),
    ],
)
def test_the_machine_is_named_as_linux_names_it(tmp_path, printed, expected):
    assert read_kernel_and_machine(written(tmp_path, UNAME.format(printed))) == expected


def status(groups, user=1000):
    ids = "\\t".join([str(user)] * 4)
    return f'"/proc/self/status" = "Uid:\\t{ids}\\nGid:\\t{ids}\\nGroups:\\t{groups}\\n"\n'


ACCOUNTS = '"/etc/passwd" = "ann:x:1000:1000::/home/ann:/bin/sh\\n"\n'
MEMBER = '"/etc/group" = "root:x:0:\\ndocker:x:998:bob,ann\\n"\n'
OUTSIDER = '"/etc/group" = "docker:x:998:bob,joann\\n"\n'


@pytest.mark.parametrize(
    ("files", "member", "active"),
    [
        pytest.param(status("998") + ACCOUNTS + MEMBER, True, True, id="a member in a new session"),
        pytest.param(status("27") + ACCOUNTS + MEMBER, True, False, id="a member whose session is older"),
        pytest.param(status("27") + ACCOUNTS + OUTSIDER, False, False, id="another name that ends the same"),
        pytest.param(status("27") + ACCOUNTS + '"/etc/group" = "root:x:0:\\n"\n', False, False, id="no such group"),
        pytest.param(status("998") + ACCOUNTS + OUTSIDER, True, True, id="a group that a directory service gave"),
    ],
)
def test_group_membership_differs_from_the_groups_of_the_session(tmp_path, files, member, active):
    system = read_system(written(tmp_path, f"[files]\n{files}"))
    assert (system.in_docker_group, system.docker_group_is_active) == (member, active)


@pytest.mark.parametrize(("user", "is_root"), [(0, True), (1000, False)], ids=["root", "anybody else"])
def test_root_is_known_by_number(tmp_path, user, is_root):
    assert read_system(written(tmp_path, "[files]\n" + status("0", user=user))).is_root is is_root


def test_quoted_and_plain_values_of_os_release_are_read(tmp_path):
    text = "ID=fedora\nVERSION_ID=42\nPRETTY_NAME=\"Fedora Linux 42\"\nID_LIKE='rhel centos'\n"
    found = read_system(written(tmp_path, f'[files]\n"/etc/os-release" = """{text}"""\n')).distribution
    assert (found.id, found.version, found.name, found.like) == ("fedora", "42", "Fedora Linux 42", ("rhel", "centos"))
