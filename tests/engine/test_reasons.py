"""What `devkit up` says of a project whose container does not start, by experiments on a real engine."""

import socket

from tests.cases import cases

from . import image
from .commands import run
from .conftest import one_engine
from .project import DEVKIT

BASE = image.BASE
DOCTOR = ("doctor", "--project", ".", "--trial", "--timeout", "60")
BUILT = "services: {a: {build: ., command: [sleep, '60']}}"
USED = f"services: {{a: {{image: {BASE}, command: [sleep, '60'], %s}}}}"


with socket.create_server(("127.0.0.1", 0)) as server:
    FREE = server.getsockname()[1]
CALL = "'import os, urllib.request; urllib.request.urlopen(os.environ[\"WEB\"])'"
SILENT = """
import os
from pathlib import Path
from devkit.devcontainer.configuration import find_dev_container
from devkit.devcontainer.engine import Failure, find_client
from devkit.devcontainer.verdict import judge_failure
from devkit.probe.host import LocalHost

host, container = LocalHost(), find_dev_container(Path(), env=os.environ, takes_compose=True)
lines = ("   2 | >>> RUN apk add --no-cache git", 'failed to solve: process "/bin/sh -c apk" did not complete successfully: exit code: 127')
print(judge_failure(host, container, Failure("the build failed", lines), find_client(host, container)).headline)
"""


@one_engine
@cases(
    "compose, dockerfile, cause, fix",
    {
        "another shell": (
            BUILT,
            "RUN set -o pipefail && echo one | cat",
            "the command works in bash, but not in the image's /bin/sh",
            'Fix in Dockerfile:2: write SHELL ["/bin/bash", "-c"] above line 2.',
        ),
        "another distribution": (
            BUILT,
            "RUN apk add --no-cache git",
            "which does not have apk and installs packages with apt-get",
            "write RUN apt-get update && apt-get install -y --no-install-recommends git in place of line 2.",
        ),
        "no user": (
            BUILT,
            "USER dev\nRUN true",
            "the image has no user dev",
            "RUN useradd --create-home dev above line 2.",
        ),
        "an order of lines": (
            BUILT,
            "RUN cat kept\nCOPY kept .",
            "kept is not in the image yet: line 3 copies it only afterward",
            "move line 3 above line 2.",
        ),
        "a step that needs root": (
            BUILT,
            "RUN useradd dev\nUSER dev\nRUN touch /opt/x",
            "this step needs root, and line 3 makes dev run it",
            "Fix in Dockerfile:4: move line 4 above line 3, or write USER root above it and USER dev below it.",
        ),
        "a variable of another step": (
            BUILT,
            "RUN export TO=/srv\nRUN touch ${TO:?is not set}/x",
            "`export TO=/srv` holds for that step alone, and line 3 needs it",
            "Fix in Dockerfile:2: write ENV TO=/srv in its place.",
        ),
        "a folder of another step": (
            BUILT,
            "RUN mkdir /made && touch /made/x && cd /made\nRUN cat x",
            "`cd /made` holds for that step alone, and line 3 needs it",
            "Fix in Dockerfile:2: write WORKDIR /made above line 3.",
        ),
        "a variable of a step, in the container": (
            BUILT.replace("[sleep, '60']", "[sh, -uc, 'echo $$MADE_IN']"),
            "RUN export MADE_IN=/srv",
            "line 2 exports MADE_IN for that step alone",
            "Fix in Dockerfile:2: write ENV MADE_IN=/srv in its place.",
        ),
        "several words in an entry": (
            BUILT.replace("[sleep, '60']", "['sleep 60']"),
            "",
            "no shell splits the first entry of the list of command",
            'Fix in compose.yaml:1: write ["sleep", "60"].',
        ),
        "nobody knows": (
            BUILT,
            "RUN false",
            "the build failed at 2/2 RUN false",
            "no experiment shows what is wrong there.",
        ),
        "a file that is not there": (
            USED % "volumes: ['./kep:/etc/passwd']",
            "",
            "(kept is beside it), and /etc/passwd is a file in the image",
            "Fix: Put the file at that path on this machine",
        ),
        "a program without its interpreter": (
            BUILT.replace("[sleep, '60']", "[/start.py]"),
            "COPY --chmod=755 start.py /",
            "/start.py has no #! line",
            "Fix in start.py:1: write #!/usr/bin/env python3 as the first line.",
        ),
        "a virtual environment that was moved": (
            BUILT.replace("[sleep, '60']", "[pip]"),
            "RUN python3 -m venv /made\nENV PATH=/used/bin:$PATH\nRUN cp -r /made /used && rm -r /made",
            "/used/bin/pip is run by /made/bin/python3, which the container does not have",
            "Fix in Dockerfile:4: make the environment at /used in the first place.",
        ),
        "a mount over a program": (
            BUILT.replace("[sleep, '60']", "[/app/bin/run], volumes: ['.:/app']"),
            "RUN mkdir -p /app/bin && cp /bin/true /app/bin/run",
            "the image has /app/bin/run, but the mount at /app hides it",
            "Fix in compose.yaml:1: mount a volume at /app/bin,",
        ),
        "a variable that no container gets": (
            USED.replace("[sleep, '60']", "[sh, -uc, 'echo $$QUEUE']") % "tty: true",
            "",
            "QUEUE is set in .env, which Compose reads for its own files only",
            "Fix in compose.yaml:1: write env_file: .env in the service.",
        ),
        "a value with a dollar sign": (
            USED.replace("[sleep, '60']", "[sh, -c, 'echo WORD is $${WORD:?too short}']") % "env_file: .env",
            "",
            "Compose takes what follows $ in the value of WORD for a variable",
            "Fix in .env:2: put the value into single quotes.",
        ),
        "no Dockerfile there": (
            BUILT.replace("build: .", "build: {context: ., dockerfile: sub/Dockerfile}"),
            "",
            "sub/Dockerfile is not in the build context",
            "write Dockerfile in place of sub/Dockerfile",
        ),
        "a program without execute bit": (
            BUILT.replace("[sleep, '60']", "[/run.sh]"),
            "COPY --chmod=644 run.sh /",
            "/run.sh is not executable",
            "Fix in Dockerfile:2: write COPY --chmod=755.",
        ),
        "a command for a shell": (
            USED.replace("[sleep, '60']", "cd / && sleep 60") % "tty: true",
            "",
            "cd is a word of the shell, and no shell runs the command",
            "Fix in compose.yaml:1: write sh -c 'cd / && sleep 60'.",
        ),
        "a volume of another user": (
            BUILT.replace("[sleep, '60']", "[touch, /kept/file], volumes: ['all:/kept']}}\nvolumes: {all: {"),
            "RUN useradd one\nUSER one",
            "/kept belongs to root, and one may not write there",
            "Fix in Dockerfile:3: write RUN mkdir -p /kept && chown one /kept above that line,",
        ),
        "a variable of others": (
            USED.replace("services: {", "x-all: {environment: {DATA_HOME: /data}}\nservices: {").replace(
                "[sleep, '60']", "[sh, -uc, 'echo $$DATA_HOME']"
            )
            % "tty: true",
            "",
            "DATA_HOME is set for x-all in line 1, and a does not get it",
            "Fix in compose.yaml:1: write DATA_HOME in the environment of a, too.",
        ),
        "another virtual environment": (
            BUILT.replace("[sleep, '60']", "[python3, -c, import kit_of_nobody]"),
            "RUN python3 -m venv /made && mkdir $(echo /made/lib/python3*)/site-packages/kit_of_nobody",
            "kit_of_nobody is installed in the virtual environment /made, and another Python was started",
            "Fix in compose.yaml:1: start /made/bin/python, or set PATH=/made/bin:$PATH.",
        ),
        "a module of the project": (
            USED.replace("[sleep, '60']", "[python3, -c, import start]") % "volumes: ['.:/app/deep']",
            "",
            "start is in /app/deep, where Python does not look",
            "Fix in compose.yaml:1: set PYTHONPATH=/app/deep, or install the project.",
        ),
        "a service of a profile": (
            (USED % "depends_on: [b]")[:-1] + ", b: {image: x, profiles: [more]}}",
            "",
            "b is only in the profile more, which is not active",
            "Fix in compose.yaml:1: run export COMPOSE_PROFILES=more first,",
        ),
        "a mount of another folder": (
            USED.replace("[sleep, '60']", "[cat, /etc/own/app.ini]") % "volumes: ['./own:/etc/own']",
            "",
            "/own, which does not have the files of the folder data/own",
            "Fix in compose.yaml:1: write ./data/own in its place.",
        ),
        "a volume in the place of a folder": (
            USED.replace("[sleep, '60']", "[cat, /etc/data/own/app.ini]").replace("}}", "}}\nvolumes: {data: {}}")
            % "volumes: ['data:/etc/data']",
            "",
            "/etc/data is the volume data, which does not have the files of the folder data",
            "Fix in compose.yaml:1: write ./data in its place.",
        ),
        "the content of a folder": (
            BUILT.replace("[sleep, '60']", "[cat, /to/own/app.ini]"),
            "COPY data/own /to/",
            "/to/own/app.ini is absent, as line 2 puts app.ini into /to: COPY takes the content of a folder",
            "Fix in Dockerfile:2: copy that folder to /to/own.",
        ),
        "a file that a build leaves out": (
            BUILT.replace("[sleep, '60']", "[cat, /srv/left/out.ini]"),
            "COPY . /srv/",
            "this line leaves left/out.ini out of the build, so that line 2 of Dockerfile does not copy it",
            "Fix in .dockerignore:2: add !left/out.ini below.",
        ),
        "a mount of the build": (
            BUILT,
            "RUN useradd dev\nUSER dev\nRUN --mount=type=cache,target=/var/own touch /var/own/x",
            "the build mounts /var/own as root's, and dev runs this step",
            "Fix in Dockerfile:4: add uid= and gid=, those of dev, to that --mount.",
        ),
        "a value that another one overrules": (
            USED.replace("[sleep, '60']", "[sh, -c, 'cat $$OWN/x']")
            % "environment: {OWN: '${OWN:-/none}'}, env_file: own.env",
            "",
            "OWN is /none by this line, which counts before line 1 of own.env",
            "Fix in compose.yaml:1: remove OWN here,",
        ),
        "a variable of nearly this name": (
            USED.replace("[sleep, '60']", "[sh, -c, 'set -u; echo $$DATA_FOLDER']") % "environment: {DATA_FOLDERS: x}",
            "",
            "DATA_FOLDER is not set, and this line sets DATA_FOLDERS",
            "Fix in compose.yaml:1: write DATA_FOLDER in place of DATA_FOLDERS",
        ),
        "another container than its own": (
            f"services: {{a: {{image: {BASE}, command: [python3, -c, {CALL}], environment: {{WEB: 'http://localhost:8000'}}}},"
            f" b: {{image: {BASE}, command: [sleep, '60'], expose: ['8000']}}}}",
            "",
            "localhost is the container of a, and port 8000 is one of b",
            "Fix in compose.yaml:1: write b:8000 in place of localhost:8000.",
        ),
        "an entrypoint without the command": (
            BUILT.replace("command: [sleep, '60']", "entrypoint: [cp]"),
            'CMD ["/etc/hostname", "/tmp"]',
            'an entrypoint in Compose drops the command of the image, ["/etc/hostname", "/tmp"]',
            'Fix in compose.yaml:1: write command: ["/etc/hostname", "/tmp"] below it.',
        ),
        "a port of this machine, which a second service asks for": (
            (USED % "ports: ['127.0.0.1:FREE:9000']")[:-1]
            + f", b: {{image: {BASE}, command: [python3, -c, {CALL}], depends_on: [a], environment: {{WEB: 'http://a:FREE/x'}}}}}}",
            "",
            "FREE is the port of a on this machine, and between containers it is 9000",
            "Fix in compose.yaml:1: write a:9000 in place of a:FREE.",
        ),
        "a host of a profile": (
            (USED.replace("[sleep, '60']", f"[python3, -c, {CALL}]") % "environment: {WEB: 'http://b-of-more:80/x'}")[
                :-1
            ]
            + ", b-of-more: {image: x, profiles: [more]}}",
            "",
            "WEB names b-of-more, which is only in the profile more, which is not active",
            "Fix in compose.yaml:1: run export COMPOSE_PROFILES=more first.",
        ),
        "a health check of another port": (
            (
                USED.replace("[sleep, '60']", "[python3, -m, http.server, '9000']")
                % "healthcheck: {test: [CMD, python3, -c, CHECK], interval: 200ms, retries: 2}"
            ).replace("CHECK", "\"import urllib.request as u; u.urlopen('http://localhost:8000')\"")[:-1]
            + f", b: {{image: {BASE}, command: [sleep, '60'], depends_on: {{a: {{condition: service_healthy}}}}}}}}",
            "",
            "the health check asks port 8000, and the container listens on 9000",
            "Fix in compose.yaml:1: write 9000 in place of 8000.",
        ),
        "a capability that is dropped": (
            USED.replace("[sleep, '60']", "[chown, nobody, /srv]") % "cap_drop: [ALL]",
            "",
            "Operation not permitted, because cap_drop takes away the capability CHOWN",
            "Fix in compose.yaml:1: write cap_add: [CHOWN] in the service.",
        ),
        "a user who has no capabilities to drop": (
            USED.replace("[sleep, '60']", "[chown, root, /srv]") % "cap_drop: [ALL], user: nobody",
            "",
            "Error: chown: changing ownership of '/srv': Operation not permitted (",
            "exited with status 1",
        ),
        "too little memory": (
            USED.replace("[sleep, '60']", "[python3, -c, 'x = bytearray(1 << 29)']")
            % "mem_limit: 64m, memswap_limit: 64m",
            "",
            "the program needs more memory than 64m, and was killed",
            "Fix in compose.yaml:1: raise it and memswap_limit, or use less memory.",
        ),
        "a path that a stage does not have": (
            BUILT,
            f"RUN mkdir -p /made/html\nFROM {BASE}\nCOPY --from=site /made/dist /srv",
            "the stage site does not have /made/dist",
            "Fix in Dockerfile:4: copy one of what /made has there (html), or correct the step",
        ),
        "a restart policy that hides the end": (
            USED.replace("[sleep, '60']", "[cat, /gone]") % "restart: unless-stopped",
            "",
            "cat: /gone: No such file or directory",
            "-a-1 exited with status 1",
        ),
        "no key of Compose": (
            USED % "port: ['80:80']",
            "",
            "Compose does not know port",
            "write ports in place of port.",
        ),
    },
)
def test_the_reason_is_found_by_trying(engine, tmp_path, compose, dockerfile, cause, fix):
    compose, cause, fix = (each.replace("FREE", str(FREE)) for each in (compose, cause, fix))
    image.provide(engine, BASE)
    files = {"compose.yaml": compose, "Dockerfile": f"FROM {BASE} AS site\n{dockerfile}\n", "kept": ""}
    files |= {"run.sh": "#!/bin/sh\nexec sleep 60\n", "start.py": "import os\n", ".env": "QUEUE=/queue\nWORD=$ecret\n"}
    files |= {"own.env": "OWN=/kept\n", ".dockerignore": "# data\nleft\n", "left/out.ini": ""}
    (tmp_path / "left").mkdir()
    (tmp_path / "data/own").mkdir(parents=True)
    for name, text in {**files, "data/own/app.ini": ""}.items():
        (tmp_path / name).write_text(text)
    done = run(
        engine.on_host(*DEVKIT, "up"), env={**engine.env, "NO_COLOR": "1", "COLUMNS": "400"}, cwd=tmp_path, expect=1
    )
    engine.clear()
    said = done.stdout + done.stderr
    assert cause in next(line for line in said.splitlines() if line.startswith("Error: "))
    assert fix in said


@one_engine
def test_a_step_of_which_the_build_shows_no_output_is_repeated(engine, tmp_path):
    image.provide(engine, BASE)
    (tmp_path / "compose.yaml").write_text(BUILT)
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN apk add --no-cache git\n")
    done = run(engine.on_host(DEVKIT[0], "-c", SILENT), env={**engine.env, "NO_COLOR": "1"}, cwd=tmp_path)
    assert "does not have apk and installs packages with apt-get" in done.stdout


@one_engine
def test_a_step_that_works_the_second_time_has_no_cause_in_its_files(engine, tmp_path):
    image.provide(engine, BASE)
    (tmp_path / "compose.yaml").write_text(BUILT)
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN cd /srv\nRUN echo made\n")
    failed = SILENT.replace("2 | >>> RUN apk add --no-cache git", "3 | >>> RUN echo made").replace("-c apk", "-c echo")
    done = run(engine.on_host(DEVKIT[0], "-c", failed), env={**engine.env, "NO_COLOR": "1"}, cwd=tmp_path)
    assert done.stdout.endswith("(RUN in Dockerfile:3)\n")
    assert "for that step alone" not in done.stdout


@one_engine
def test_the_doctor_tells_how_the_last_containers_ended(engine, tmp_path):
    image.provide(engine, BASE)
    compose = USED.replace("[sleep, '60']", "[cat, /etc/own/app.ini]") % "volumes: ['./own:/etc/own']"
    (tmp_path / "data/own").mkdir(parents=True)
    (tmp_path / "data/own/app.ini").touch()
    (tmp_path / "compose.yaml").write_text(compose)

    def ask(*words):
        env = {**engine.env, "NO_COLOR": "1", "COLUMNS": "400"}
        return " ".join(run(engine.on_host(*DEVKIT, *words), env=env, cwd=tmp_path, expect=None).stdout.split())

    ask("up")
    assert "Correct services.a.volumes in line 1 of compose.yaml: write ./data/own in its place." in ask(*DOCTOR)
    (tmp_path / "compose.yaml").write_text(compose.replace("./own:", "./data/own:"))
    said = ask(*DOCTOR)
    assert "-a-1 fails: cat: /etc/own/app.ini: No such file or directory" in said
    assert "Correct" not in said
    ask("up")
    assert "-a-1 fails" not in ask(*DOCTOR)
