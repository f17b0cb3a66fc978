"""Checks of the containerd or CRI-O that runs a Kubernetes node's pods."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.cdi import CDI_GPU_KIND
from devkit.doctor.model import NotApplicable, check
from devkit.doctor.preconditions import require_nvidia_gpu, require_some, require_toolkit, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.facts.engine import PodRuntime
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import join_words

_SERVICES = {"containerd": "containerd", "CRI-O": "crio"}
"""As nvidia-ctk and systemd call them."""
_RESTART_AGENT = {
    "k3s": "sudo systemctl restart k3s || sudo systemctl restart k3s-agent",
    "rke2": "sudo systemctl restart rke2-server || sudo systemctl restart rke2-agent",
}
"""Both look for the toolkit's programs when they start. Source: K3s, "NVIDIA Container Runtime"; RKE2, "Advanced"."""


def _require_pod_runtime(facts: Facts) -> PodRuntime:
    require_nvidia_gpu(facts)
    return require_some(require_toolkit(facts).pods, "this machine is not a Kubernetes node")


def _configure(pods: PodRuntime) -> tuple[str, ...]:
    """List the commands that register the nvidia runtime and let it be read.

    Source: NVIDIA, Container Toolkit install guide; MicroK8s, "Add-on: nvidia".
    """
    if pods.name not in _SERVICES:
        return ("sudo microk8s enable nvidia",) if "MicroK8s" in pods.name else _restart(pods)
    # What nvidia-ctk writes is a file to import, and a file of version 1 imports none.
    raise_version = f"sudo sed -i -e '1i version = 2' -e '/^version *=/d' {quote(pods.path)}"
    configure = f"sudo nvidia-ctk runtime configure --runtime={_SERVICES[pods.name]}"
    return (
        *((raise_version,) if pods.version == 1 and not pods.runtimes else ()),
        configure
        + (" --set-as-default" if pods.default_runtime == "nvidia" else "")
        + (" --drop-in-config=/etc/containerd/conf.d/99-nvidia.toml" if pods.ignored_file else ""),
        *_write_cgroup_driver(pods),
        *_restart(pods),
    )


def _write_cgroup_driver(pods: PodRuntime) -> tuple[str, ...]:
    """List the command that gives the nvidia runtime the kubelet's cgroup driver, which nvidia-ctk takes from runc alone."""
    if pods.name != "containerd" or not pods.kubelet_cgroup_driver:
        return ()
    value = str(pods.kubelet_cgroup_driver == "systemd").lower()
    header = r'runtimes\."?nvidia"?\.options\]'
    return (
        f"sudo grep -rlE '{header}' /etc/containerd | sudo xargs sed -i -E"
        rf" -e '/{header}/,/^ *\[/{{/SystemdCgroup/d}}' -e '/{header}/a SystemdCgroup = {value}'",
    )


def _restart(pods: PodRuntime) -> tuple[str, ...]:
    if pods.name in _SERVICES:
        return (f"sudo systemctl restart {_SERVICES[pods.name]}",)
    return () if "MicroK8s" in pods.name else (_RESTART_AGENT["rke2" if "/rke2/" in pods.path else "k3s"],)


@check("POD001", causes=("POD002", "POD003"))
def pod_runtime_reads_settings(facts: Facts) -> Iterator[Problem]:
    pods = _require_pod_runtime(facts)
    path, configure = pods.path, _configure(pods)
    if pods.error:
        yield problem(
            "mixed-versions" if "higher than version" in pods.error else "not-readable",
            program=pods.name,
            error=pods.error,
            configure=configure,
            restart=_restart(pods),
            subject=path,
            evidence=(pods.error,),
        )
        return
    if pods.is_off:
        evidence = f'{path}: disabled_plugins = ["cri"]'
        yield problem("switched-off", path=path, configure=configure, evidence=(evidence,))
    if section := pods.ignored_section:
        evidence = f"{path}: runtime nvidia under {section}"
        yield problem("wrong-section", path=path, section=section, configure=configure, evidence=(evidence,))
    if file := pods.ignored_file:
        evidence = f"{file}: not among the imports"
        yield problem("not-imported", path=path, file=file, configure=configure, evidence=(evidence,))


@check("POD002", causes=("POD003",))
def pods_have_nvidia_runtime(facts: Facts) -> Iterator[Problem]:
    pods = _require_pod_runtime(facts)
    skip_if(pods.error or pods.is_off or pods.ignored_section or pods.ignored_file, "its settings are not read")
    names = join_words(runtime.name for runtime in pods.runtimes) or "none"
    evidence = [f"{pods.path}: runtimes {names}, default {pods.default_runtime or 'not set'}"]
    nvidia = next((runtime for runtime in pods.runtimes if runtime.name == "nvidia"), None)
    if nvidia is not None and nvidia.program == "":
        evidence.append(f"BinaryName: {nvidia.path or 'not set'}")
        fault = "gone"
    elif nvidia is not None:
        if pods.default_runtime != "nvidia":
            yield problem("not-default", evidence=evidence)
        return
    elif pods.default_runtime == "nvidia":
        fault = "default-not-registered"
    else:
        has_specs = isinstance(facts.cdi, Unknown) or any(spec.kind == CDI_GPU_KIND for spec in facts.cdi)
        fault = "only-cdi" if has_specs else "no-way"
    yield problem(
        fault,
        program=pods.name,
        path=nvidia.path or "no program" if nvidia else "",
        configure=_configure(pods),
        subject=pods.path,
        evidence=evidence,
    )


@check("POD003")
def pods_share_cgroup_driver(facts: Facts) -> Iterator[Problem]:
    pods = _require_pod_runtime(facts)
    if pods.systemd_cgroup is None or not any(runtime.name == "nvidia" for runtime in pods.runtimes):
        raise NotApplicable("the runtime nvidia has no such setting")
    if pods.kubelet_cgroup_driver not in ("systemd", "cgroupfs"):
        raise NotApplicable("the kubelet's settings do not set its cgroup driver")
    wants_systemd = pods.kubelet_cgroup_driver == "systemd"
    if pods.systemd_cgroup is not wants_systemd:
        value = str(pods.systemd_cgroup).lower()
        yield problem(
            "other-driver",
            value=value,
            wanted=str(wants_systemd).lower(),
            kubelets=pods.kubelet_cgroup_driver,
            program=pods.name,
            commands=(*_write_cgroup_driver(pods), *_restart(pods)),
            subject=pods.path,
            evidence=(
                f"{pods.path}: runtime nvidia, SystemdCgroup {value}",
                f"/var/lib/kubelet/config.yaml: cgroupDriver {pods.kubelet_cgroup_driver}",
            ),
        )
