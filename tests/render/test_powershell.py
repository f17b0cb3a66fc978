"""gpu.ps1: the grammar of PowerShell accepts it, and it writes what gpu.sh writes. No PowerShell runs here.

Windows PowerShell runs on Windows alone, and its successor is in none of the package indexes that tests may use. What
the script decides is kept small for that reason, and what can be compared with gpu.sh is compared.
"""

import re
from dataclasses import replace

import pytest
import tree_sitter
import tree_sitter_powershell

from devkit.render.container.compose import find_gpu_modes, render_devcontainer_compose
from devkit.render.container.settings import ContainerSettings, FromIndex

from .plans import ARM_PLAN, CPU_PLAN, GPU_PLAN, ROCM_PLAN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"), for_windows=True)
CASES = [
    pytest.param(CPU_PLAN, PLAIN, id="the CPU"),
    pytest.param(GPU_PLAN, PLAIN, id="NVIDIA and both engines"),
    pytest.param(ARM_PLAN, replace(PLAIN, engine="docker"), id="NVIDIA and Docker"),
    pytest.param(GPU_PLAN, replace(PLAIN, engine="podman"), id="NVIDIA and Podman"),
    pytest.param(ROCM_PLAN, PLAIN, id="AMD"),
]
every_case = pytest.mark.parametrize(("plan", "settings"), CASES)


def script(plan, settings, name: str = "gpu.ps1") -> str:
    (found,) = (each for each in render_devcontainer_compose(plan, settings) if each.path.endswith(f"/{name}"))
    return found.content.decode()


def mistakes(text: str) -> list[str]:
    """The places that the grammar does not accept."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
    waiting, found = [parser.parse(text.encode()).root_node], []
    while waiting:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            found.append(f"line {node.start_point[0] + 1}: {node.type}")
        waiting += node.children
    return found


@every_case
def test_the_grammar_accepts_it(plan, settings):
    text = script(plan, settings)
    assert mistakes(text) == []
    # Windows PowerShell reads a file without a mark in the code page of the machine.
    assert text.isascii()


def test_the_grammar_tells_a_broken_script():
    assert mistakes(script(GPU_PLAN, PLAIN).replace("{ return '' }", "{ return ''", 1))


@every_case
def test_it_knows_the_modes_of_the_project_and_asks_as_the_other_script_does(plan, settings):
    text, other = script(plan, settings), script(plan, settings, "gpu.sh")
    modes = ", ".join(find_gpu_modes(plan, settings.engine))
    assert modes in text
    assert modes in other
    if "nvidia" in modes or "podman" in modes:
        for form in ("[label=disable]", "([0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z-]+)"):
            assert form in text
            assert form in other or settings.engine == "docker"
    if "nvidia" in modes:
        assert "deploy: {resources: {reservations: {devices: [{driver: $Mode, $which, capabilities: [gpu]}]}}}" in text
        assert "deploy: {resources: {reservations: {devices: [{driver: $mode, $1, capabilities: [gpu]}]}}}" in other


@every_case
def test_it_writes_the_lines_that_the_other_script_writes_and_with_the_same_mark(plan, settings):
    text, other = script(plan, settings), script(plan, settings, "gpu.sh")
    written = set(re.findall(r"\$found\['(DEVKIT_\w+)'\]", text))
    assert written <= {"DEVKIT_GPU_FILE", "DEVKIT_PROJECT"}
    assert written <= set(re.findall(r"setting (DEVKIT_\w+)", other))
    assert "$mark = ' # gpu.sh'" in text
    assert "%s=%s # gpu.sh" in other


def test_a_project_whose_hosts_have_a_posix_shell_has_none():
    files = [each.path for each in render_devcontainer_compose(GPU_PLAN, replace(PLAIN, for_windows=False))]
    assert not [path for path in files if path.endswith(".ps1")]
