"""Checks of the containerd or CRI-O that runs a Kubernetes node's pods."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.cdi import CDI_GPU_KIND
from devkit.doctor.fixes import TOOLKIT_GUIDE
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.doctor.preconditions import require, require_nvidia_gpu, require_toolkit
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
    pods = require(require_toolkit(facts).pods)
    if pods is None:
        raise NotApplicable("this machine is no Kubernetes node")
    return pods


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


def _build_finding(pods: PodRuntime, severity: Severity, message: str, fix: Fix, *evidence: str) -> Finding:
    return Finding(severity, message, fix, subject=pods.path, evidence=evidence, confidence=Confidence.LIKELY)


@check("POD001", causes=("POD002", "POD003"))
def pod_runtime_reads_settings(facts: Facts) -> Iterator[Finding]:
    pods = _require_pod_runtime(facts)
    if pods.error:
        fix = Fix("Correct the file, and restart it.", _restart(pods), root=True, restart=Restart.ENGINE)
        if "higher than version" in pods.error:
            fix = Fix(
                "Write it again in the version of the main file. For the GPU Operator, set RUNTIME_CONFIG_SOURCE=file in the"
                " toolkit's environment.",
                _configure(pods),
                root=True,
                restart=Restart.ENGINE,
            )
        yield _build_finding(
            pods, Severity.ERROR, f"{pods.name} cannot read its settings: {pods.error}", fix, pods.error
        )
        return
    if pods.is_off:
        switch = f"sudo sed -i '/^disabled_plugins/s/\"cri\",\\? *//' {quote(pods.path)}"
        yield _build_finding(
            pods,
            Severity.ERROR,
            f"{pods.path} switches off what the kubelet talks to, so this node starts no pod",
            Fix("Switch the plugin cri on.", (switch, *_configure(pods)), root=True, restart=Restart.ENGINE),
            f'{pods.path}: disabled_plugins = ["cri"]',
        )
    if pods.ignored_section:
        yield _build_finding(
            pods,
            Severity.ERROR,
            f"{pods.path} registers the nvidia runtime under {pods.ignored_section}, which its version does not have",
            Fix("Register it again; nvidia-ctk 1.17.4 and later know both versions.", _configure(pods), root=True),
            f"{pods.path}: runtime nvidia under {pods.ignored_section}",
        )
    if pods.ignored_file:
        yield _build_finding(
            pods,
            Severity.ERROR,
            f"nvidia-ctk registered the nvidia runtime in {pods.ignored_file}, which {pods.path} does not import",
            Fix("Let it write a file that is imported.", _configure(pods), root=True, restart=Restart.ENGINE),
            f"{pods.ignored_file}: not among the imports",
        )


@check("POD002", causes=("POD003",))
def pods_have_nvidia_runtime(facts: Facts) -> Iterator[Finding]:
    pods = _require_pod_runtime(facts)
    if pods.error or pods.is_off or pods.ignored_section or pods.ignored_file:
        raise NotApplicable("its settings are not read")
    names = [runtime.name for runtime in pods.runtimes]
    evidence = f"{pods.path}: runtimes {join_words(names) or 'none'}, default {pods.default_runtime or 'not set'}"
    fix = Fix("Register the toolkit's runtime, and restart.", _configure(pods), root=True, docs=TOOLKIT_GUIDE)
    nvidia = next((runtime for runtime in pods.runtimes if runtime.name == "nvidia"), None)
    if nvidia is None and pods.default_runtime == "nvidia":
        message = f"the default runtime of {pods.name} is nvidia, which nothing registers: no pod starts"
        yield _build_finding(pods, Severity.ERROR, message, fix, evidence)
    elif nvidia is None:
        has_specs = isinstance(facts.cdi, Unknown) or any(spec.kind == CDI_GPU_KIND for spec in facts.cdi)
        message = f"{pods.name} has no runtime named nvidia" + (
            "" if has_specs else ", nor a CDI specification: pods get no GPU"
        )
        yield _build_finding(pods, Severity.NOTE if has_specs else Severity.WARNING, message, fix, evidence)
    elif nvidia.program == "":
        message = (
            f"{pods.name} registers nvidia as {nvidia.path or 'no program'}, which is not there: its pods do not start"
        )
        yield _build_finding(pods, Severity.ERROR, message, fix, evidence, f"BinaryName: {nvidia.path or 'not set'}")
    elif pods.default_runtime != "nvidia":
        yield Finding(
            Severity.NOTE,
            "pods get a GPU only with the runtime class nvidia, which is not this node's default runtime",
            Fix(
                "Set runtimeClassName: nvidia in the pods, the device plugin's own included, or --set-as-default on the node."
            ),
            evidence=(evidence,),
            confidence=Confidence.POSSIBLE,
        )


@check("POD003")
def pods_share_cgroup_driver(facts: Facts) -> Iterator[Finding]:
    pods = _require_pod_runtime(facts)
    if pods.systemd_cgroup is None or not any(runtime.name == "nvidia" for runtime in pods.runtimes):
        raise NotApplicable("the runtime nvidia has no such setting of its own")
    if pods.kubelet_cgroup_driver not in ("systemd", "cgroupfs"):
        raise NotApplicable("the kubelet's settings do not name its cgroup driver")
    wants_systemd = pods.kubelet_cgroup_driver == "systemd"
    if pods.systemd_cgroup is wants_systemd:
        return
    value = str(wants_systemd).lower()
    yield _build_finding(
        pods,
        Severity.WARNING,
        f"the nvidia runtime has SystemdCgroup = {str(pods.systemd_cgroup).lower()}, but the kubelet's cgroup driver is"
        f" {pods.kubelet_cgroup_driver}",
        Fix(
            f"Write SystemdCgroup = {value} under the options of the runtime nvidia, and restart {pods.name}.",
            (*_write_cgroup_driver(pods), *_restart(pods)),
            root=True,
            restart=Restart.ENGINE,
            docs="https://kubernetes.io/docs/setup/production-environment/container-runtimes/",
        ),
        f"{pods.path}: runtime nvidia, SystemdCgroup {str(pods.systemd_cgroup).lower()}",
        f"/var/lib/kubelet/config.yaml: cgroupDriver {pods.kubelet_cgroup_driver}",
    )
