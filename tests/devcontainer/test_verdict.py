"""Why a dev container did not start, in the words of Docker 28.5, BuildKit and the dev container CLI 0.89."""

import pytest

from devkit.devcontainer.configuration import DevContainer
from devkit.devcontainer.engine import Failure
from devkit.devcontainer.verdict import judge_failure
from devkit.probe.host import LocalHost
from tests.cases import cases

DOCKERFILE = """ARG HUB=/opt/hub
FROM base AS app
ENV HOME=/root
COPY docker/run.sh /usr/bin/run.sh
COPY --from=build /out /opt
RUN mkdir -p ${HUB}
ENTRYPOINT ["httpd", "-p", "$PORT"]
FROM base AS build
ARG KIND=gpu
FROM runtime-${KIND}
"""
DEV_CONTAINER = """{
  "build": {"dockerfile": "Dockerfile"},
  "mounts": ["source=${localEnv:DATASETS},target=/data,type=bind"],
  "postCreateCommand": "mkdir -p ~/.cache/hub"
}"""
EXCERPT = """Dockerfile-with-features:9
--------------------
   8 |     COPY docker/run.sh /usr/bin/run.sh
   9 | >>> COPY --from=build /out /opt
ERROR: failed to solve: cannot copy from stage "build", it needs to be defined before current stage "app"
"""
REFUSED = (
    "Error response from daemon: failed to create task for container: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "/usr/bin/run.sh": permission denied'
)
PLACE = ".devcontainer/Dockerfile"


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.delenv("DATASETS", raising=False)
    (tmp_path / ".devcontainer/docker").mkdir(parents=True)
    (tmp_path / ".devcontainer/docker/run.sh").touch()
    (tmp_path / PLACE).write_text(DOCKERFILE)
    file = tmp_path / ".devcontainer/devcontainer.json"
    file.write_text(DEV_CONTAINER)
    return DevContainer(tmp_path, file, {})


@cases(
    "title, text, headline, step",
    {
        "a variable of the shell": (
            "devcontainer up failed",
            'docker: Error response from daemon: invalid mount config for type "bind": field Source must not be empty',
            "DATASETS is not set (mounts in .devcontainer/devcontainer.json:3)",
            "Fix in .devcontainer/devcontainer.json:3: export DATASETS, or write a default, as in ${localEnv:DATASETS:VALUE}.",
        ),
        "an argument below the first FROM": (
            "devcontainer up failed",
            "Error response from daemon: invalid reference format\nCommand failed: docker pull runtime-",
            f"KIND has no value here, because line 9 sets it out of reach (FROM in {PLACE}:10)",
            f"Fix in {PLACE}:10: move line 9 above the first FROM.",
        ),
        "an argument above FROM": (
            "the build failed at 4/4 RUN mkdir -p ${HUB}",
            "mkdir: missing operand\n   9 | >>> RUN mkdir -p ${HUB}\nERROR: did not complete successfully: exit code: 1",
            f"HUB has no value here, because line 1 sets it out of reach (RUN in {PLACE}:6)",
            f"Fix in {PLACE}:6: write `ARG HUB` between FROM and line 6.",
        ),
        "the order of stages": (
            "devcontainer up failed: An error occurred building the image.",
            EXCERPT,
            f"the stage build begins only in line 8 (COPY in {PLACE}:5, FROM in {PLACE}:8)",
            f"Fix in {PLACE}:5: move that stage above the one of line 5.",
        ),
        "a folder that the image sets": (
            "devcontainer up failed: postCreateCommand from devcontainer.json failed.",
            "mkdir: can't create directory '/root/.cache/': Permission denied\n"
            "postCreateCommand from devcontainer.json failed with exit code 1. Skipping any further user-provided commands.",
            "mkdir: can't create directory '/root/.cache/': Permission denied "
            f"(postCreateCommand in .devcontainer/devcontainer.json:4, ENV in {PLACE}:3)",
            f"The words lead to line 4 of .devcontainer/devcontainer.json and line 3 of {PLACE}; no experiment shows what is "
            "wrong there.",
        ),
        "a variable in a list": (
            "the container app-1 exited with status 1",
            "app-1  | httpd: bad address '$PORT'",
            f"no shell reads a list, so that $PORT stays as it is written (ENTRYPOINT in {PLACE}:7)",
            f"Fix in {PLACE}:7: write the command as text, without brackets.",
        ),
        "a program without an execute bit": (
            "the container could not be started",
            REFUSED,
            f'runc create failed: unable to start container process: exec: "/usr/bin/run.sh": permission denied (COPY in {PLACE}:4)',
            "Fix: make the file of /usr/bin/run.sh executable with chmod +x, or write COPY --chmod=755 in line 4 of "
            f"{PLACE}.",
        ),
        "a program that the image lacks": (
            "devcontainer up failed: onCreateCommand from devcontainer.json failed.",
            "/bin/sh: 1: python3: not found\n"
            "onCreateCommand from devcontainer.json failed with exit code 127. Skipping any further user-provided commands.",
            "/bin/sh: 1: python3: not found",
            "Fix: onCreateCommand runs a program that is not in the image (exit code 127). Install the program in the "
            "image or with a feature, or call it by its path.",
        ),
        "a program that ends": (
            "the container web exited with status 0",
            "the container web exited with status 0",
            "the container web exited with status 0",
            'Fix: start a program that keeps running: "overrideCommand": true in devcontainer.json, or a command in the '
            "Compose file.",
        ),
        "nothing said": ("compose build ended with status 1", "", "compose build ended with status 1", ""),
    },
)
def test_the_cause_is_told_with_its_line_and_what_mends_it(container, title, text, headline, step):
    verdict = judge_failure(LocalHost(), container, Failure(title, tuple(text.splitlines())))
    assert verdict.headline == headline
    assert next(verdict.list_steps(), "") == step


def test_of_an_absent_program_the_path_that_the_project_sets_is_named(container):
    (container.folder / "compose.yaml").write_text("services:\n  app:\n    environment:\n      - PATH=/opt/bin\n")
    title = "devcontainer up failed: postCreateCommand from devcontainer.json failed."
    verdict = judge_failure(LocalHost(), container, Failure(title, ("/bin/sh: 1: hubctl: not found",)))
    assert [(each.file, each.line) for each in verdict.places[:2]] == [
        (".devcontainer/devcontainer.json", 4),
        ("compose.yaml", 4),
    ]
    assert [*verdict.list_steps()] == [
        "Fix: add the folder of hubctl to PATH, which line 4 of compose.yaml sets; or install it."
    ]


def test_what_the_catalog_knows_for_sure_is_the_fix_where_no_line_is_to_blame(container):
    text = 'could not select device driver "" with capabilities: [[gpu]]'
    verdict = judge_failure(LocalHost(), container, Failure("devcontainer up failed", (text,)))
    assert next(verdict.list_steps()).startswith(f"Fix: {verdict.known}. ")
    assert verdict.places == ()


def test_a_source_that_the_context_lacks_is_told_with_the_nearest_name_and_not_beside_a_guess(container):
    (container.folder / ".devcontainer/docker/run.sh").unlink()
    text = 'ERROR: failed to calculate checksum of ref a::b: "/docker/run.sh": not found'
    for beside, remedy in (
        ("start.sh", "add docker/run.sh to"),
        ("run.bash", "write docker/run.bash in place of docker/run.sh"),
    ):
        (container.folder / ".devcontainer/docker" / beside).touch()
        verdict = judge_failure(LocalHost(), container, Failure("x", (text,)))
        (step,) = verdict.list_steps()
        assert verdict.headline.startswith("docker/run.sh is not in the build context, .devcontainer")
        assert step.startswith(f"Fix in {PLACE}:4: {remedy}")


def test_without_a_reason_no_line_is_called_wrong(container):
    verdict = judge_failure(LocalHost(), container, Failure("x", ("cannot use /root/.cache: invalid argument",)))
    assert [*verdict.list_steps()] == [
        "The words lead to line 3 of .devcontainer/Dockerfile; no experiment shows what is wrong there."
    ]


def test_what_an_engine_refuses_of_a_gpu_is_not_the_line_that_requests_it(container):
    container.file.write_text('{"runArgs": ["--device", "nvidia.com/gpu=all"]}')
    text = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all"
    verdict = judge_failure(LocalHost(), container, Failure("x", (text,)))
    assert next(verdict.list_steps()).startswith(f"Fix: {verdict.known}. ")
    assert verdict.known


def test_the_words_of_a_headline_are_not_cut_to_nothing(container):
    text = f"Error response from daemon: failed to write 450000: write /sys/fs/cgroup/{'a' * 130}: invalid argument"
    assert judge_failure(LocalHost(), container, Failure("x", (text,))).headline.startswith("write /sys/fs/cgroup/aaa")


def test_a_secret_in_the_output_is_not_shown(container):
    token = "hf_" + "a1B2" * 8
    for failure in (Failure("x", (f"Error: denied for {token}",)), Failure(f"it ended for {token}", ())):
        verdict = judge_failure(LocalHost(), container, failure)
        assert token not in " ".join((verdict.headline, *verdict.shown))


def test_frames_of_the_cli_and_names_of_containers_are_not_shown(container):
    lines = ("app-1  | no such thing", "    at async hI (/x/cli.js:488:5808)", "    at process:95:5)")
    assert [each for each in judge_failure(LocalHost(), container, Failure("x", lines)).shown if each] == [
        "no such thing"
    ]


def test_a_line_that_is_shown_holds_no_secret(container):
    (container.folder / "compose.yaml").write_text(
        "services:\n  app:\n    image: base:7.1\n    environment:\n      DB_PASSWORD: plain/word\n"
    )
    verdict = judge_failure(LocalHost(), container, Failure("docker compose failed", ("cannot use plain/word",)))
    (line,) = verdict.list_lines()
    assert line.startswith("compose.yaml:5: services.app.environment.DB_PASSWORD: ")
    assert "plain/word" not in line
