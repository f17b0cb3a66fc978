"""The check of the rules that a project sets itself in devkit.toml."""

from collections.abc import Iterator

from devkit.doctor.applies import known
from devkit.doctor.checks.project_units import Unit, placed, project_of, units_of
from devkit.doctor.checks.project_users import begins_as_root
from devkit.doctor.model import Finding, Fix, Location, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts, Project, Setting
from devkit.facts.policy import Policy
from devkit.facts.values import Unknown
from devkit.text import listed

_ROOT = ("root", "0")


@check(
    "PRJ032",
    "The project's containers keep its own policy",
    symptoms=("violates PodSecurity", "runAsNonRoot != true", "policy.registries"),
)
def containers_keep_policy(facts: Facts) -> Iterator[Finding]:
    """Images, package indexes, users, privileges and labels are those that [policy] in devkit.toml allows.

    Why it matters: a company lets images in from registries that it scans, and keeps root and privileged containers off
    its machines. What breaks that is stopped by an admission rule later, or by nobody.
    How it is seen: each FROM and image against policy.registries, each index that an installation of GPU packages names
    against policy.indexes, the user and `privileged` of each container, and the labels of images that are built here.
    Source: Kubernetes, "Pod Security Standards" (Restricted); Docker, "Dockerfile reference", LABEL and USER.
    """
    project = project_of(facts)
    policy = known(project.policy)
    if policy is None:
        raise NotApplicable("devkit.toml sets no policy")
    yield from _images(project, policy)
    yield from _indexes(project, policy)
    for unit in units_of(facts):
        yield from _powers(unit, policy)
        yield from _labels(unit, policy)


def _images(project: Project, policy: Policy) -> Iterator[Finding]:
    named: list[Setting | None] = []
    for dockerfile in project.dockerfiles:
        stages = {stage.name for stage in dockerfile.stages if stage.name}
        froms = (stage for stage in dockerfile.stages if stage.image not in stages)
        named += [Setting("FROM", stage.image, dockerfile.path, stage.line) for stage in froms]
    # A service that is built gives its image a name, and takes none.
    named += [service.image for service in project.services if service.build is None]
    named += [one.image for one in project.dev_containers]
    for image in dict.fromkeys(each for each in named if each is not None and "$" not in each.value):
        if not policy.allows_image(image.value):
            mirrored = policy.mirrored(image.value)
            instead = f"Take it as {mirrored}." if policy.allows_image(mirrored) else "Take an image from one of these."
            yield _finding(
                image, f"{image.value} is not of an allowed registry: {listed(policy.registries, 'or')}", instead
            )


def _indexes(project: Project, policy: Policy) -> Iterator[Finding]:
    of_images = (
        install for dockerfile in project.dockerfiles for stage in dockerfile.stages for install in stage.installs
    )
    of_editors = (install for dev in project.dev_containers for install in dev.installs)
    for install in (*of_images, *of_editors, *project.installs):
        for url in install.indexes:
            if not policy.allows_index(url):
                place = Setting("index", url, install.path, install.line)
                says = f"packages come from {url}, which policy.indexes does not allow"
                yield _finding(place, says, f"Take them from {listed(policy.indexes, 'or')}.")


def _powers(unit: Unit, policy: Policy) -> Iterator[Finding]:
    privileged = unit.setting("privileged")
    if not policy.allow_privileged and privileged is not None and privileged.value.lower() == "true":
        yield _finding(privileged, f"{unit.name} is privileged, which the policy forbids", "Leave `privileged` out.")
    user, image = unit.user, unit.image
    if policy.allow_root:
        return
    if user is not None and user.value in _ROOT:
        yield _finding(user, f"{unit.name} works as root, which the policy forbids", "Name another user.")
    elif user is None and image is not None and begins_as_root(image.value):
        yield _finding(
            image,
            f"{unit.name} names no user, so it works as root, which the policy forbids",
            "Make a user in the Dockerfile, and name it with USER.",
        )


def _labels(unit: Unit, policy: Policy) -> Iterator[Finding]:
    if unit.dockerfile is None or not unit.stages:
        return
    labels: dict[str, str] = {}
    for stage in unit.stages:
        if isinstance(stage.labels, Unknown):
            return
        labels |= {label.name: label.value for label in stage.labels}
    missing = [(name, value) for name, value in policy.required_labels if labels.get(name) != value]
    if missing:
        place = Setting("FROM", "", unit.dockerfile.path, unit.stages[-1].line)
        wanted = listed(f"{name}={value}" for name, value in missing)
        yield _finding(place, f"the image lacks labels that the policy asks for: {wanted}", "Add them with LABEL.")


def _finding(place: Setting, message: str, summary: str) -> Finding:
    at = placed(place.path, place.line)
    return Finding(
        Severity.ERROR,
        message,
        Fix(summary, where=Side.PROJECT),
        subject=at,
        evidence=(f"{at}: {place.name} {place.value}".rstrip(), "devkit.toml: [policy]"),
        location=Location(place.path, place.line),
    )
