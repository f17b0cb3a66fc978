"""Every command as a stranger's machine has it: 241 odd environments around it, a hostile repository under it.

Each run gets a machine of its own in namespaces: this one's files below a layer that takes all writes, a network that
swallows every packet, and process numbers of its own. So whatever a command writes, leaves running, or runs of the
repository is seen. `odd_environments.toml` is the table. Linux, root, unshare and overlayfs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.parse import unquote_to_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, record
from tests.hosts.golden import facts_file

NAME = "odd_environments"
MAX_SECONDS, MAX_MEGABYTES, KILLED_AFTER_S = 10, 500, 25
SECRET = "hf_pLaNtEdSeCrEt0123456789abcdefgh"
SHORT_FORMS = {"{secret}": SECRET, "{login}": f"me:{SECRET}", "{path}": "/usr/local/bin:/usr/bin:/bin"}
BASE = {"HOME": "/home/dev", "USER": "dev", "LANG": "C.UTF-8", "PATH": "{path}", "HF_TOKEN": SECRET}
FIXED = ("--vendor=cpu", "--torch=2.13.0", "--python=3.11", "--machine=x86_64", "--glibc=2.36", "--no-resolve")
MAIN = {
    "doctor json": ("doctor", "--json", "--verbose"),
    "init": ("init", "--yes", *FIXED),
    "update": ("update", "/srv/ready", "--check", "--no-resolve"),
    "explain code": ("explain", "DRV001"),
    "up": ("up", "/srv/ready"),
}
"""Tried in every environment; of the others each environment gets three."""
OTHERS = {
    "doctor": ("doctor",),
    "doctor fix": ("doctor", "--fix", "--yes"),
    "doctor save": ("doctor", "--save-facts", "facts.json"),
    "explain text": ("explain", "CUDA error: no kernel image is available"),
    "plan": ("plan", *FIXED),
    "plan here": ("plan", "--json", "--no-resolve"),
    "install": ("install", "--no-resolve"),
    "toolkit": ("toolkit",),
    "init dry": ("init", "--dry-run", "--no-resolve"),
    "template": ("template", "out"),
    "feature": ("feature", "out"),
    "estimate": ("estimate", "meta-llama/Llama-3.1-8B", "--gpu", "RTX 4090"),
    "export": ("export", "kubernetes", "/srv/ready", "--output", "out", "--", "python", "train.py"),
    "bundle": ("bundle", "/srv/ready"),
    "onboard": ("onboard", "/srv/ready"),
    "shell": ("shell", "/srv/ready"),
    "run": ("run", "--directory", "/srv/ready", "--", "true"),
    "down": ("down", "/srv/ready"),
    "verify": ("verify", "/srv/ready"),
    "verify here": ("verify", "--here", "--quick"),
    "benchmark": ("benchmark",),
    "model": ("model", "fetch", "smollm2-135m"),
    "finetune": ("finetune", "--model", "x", "--data", "d.jsonl", "--output", "o"),
    "generate": ("generate", "--model", "x", "--prompt", "hi"),
    "serve": ("serve", "smollm2-135m"),
    "fleet": ("fleet", "doctor", "10.255.255.1", "--timeout", "3"),
    "fleet compare": ("fleet", "compare", "/srv/a.json", "/srv/b.json"),
    "mcp": ("mcp",),
    "completion": ("completion", "bash"),
    "schema": ("schema", "plan"),
    "data": ("data",),
    "help": ("--help",),
    "usage": ("docto",),
}
PROGRAMS = "docker podman git nvidia-smi nvidia-ctk uv ssh devcontainer code systemctl uname ldconfig"
SEARCHED = ("pip", "python", "python3", "python3.11", "kubectl", "id", "getconf", "less", "pager", "sh")
MODULES = (
    "torch yaml json click rich jinja2 docker pynvml packaging tomlkit subprocess threading tempfile platform importlib contextlib"
    " sitecustomize usercustomize conftest transformers ctypes"
)
REPOSITORY = {
    ".venv/pyvenv.cfg": "home = /srv/project\n",
    "setup.py": "open('/canary/setup', 'w').close()\nfrom setuptools import setup\nsetup(name='x', install_requires=['torch'])\n",
    "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'conftest'\nbackend-path = ['.']\n"
    "[project]\nname = 'x'\ndynamic = ['version']\ndependencies = ['torch', 'transformers']\n",
    "requirements.txt": "torch\ntransformers\n",
    "uv.toml": "index-url = 'https://10.255.255.1/simple'\ncache-dir = '/canary/uv-cache'\n",
    "pip.conf": "[global]\nlog = /canary/pip-log\nindex-url = https://10.255.255.1/simple\n",
    ".env": "PATH=/srv/project\nLD_PRELOAD=/srv/project/x.so\nPYTHONPATH=/srv/project\n",
    "Makefile": "all:\n\ttouch /canary/make\n",
    ".git/config": "[core]\nrepositoryformatversion=1\nfsmonitor=touch /canary/fsmonitor;false\nsshCommand=touch /canary/ssh;false\n"
    "hooksPath=/srv/project/.git/hooks\npager=touch /canary/pager\neditor=touch /canary/editor\n[alias]\nlog=!touch /canary/alias\n"
    '[diff]\nexternal=touch /canary/diff\n[gpg]\nprogram=./code\n[log]\nshowSignature=true\n[filter "x"]\nclean=touch /canary/clean\n'
    "smudge=touch /canary/smudge\nprocess=touch /canary/process\nrequired\n[credential]\nhelper=!touch /canary/credential\n"
    '[include]\npath=/srv/project/included\n[remote "origin"]\nurl=ext::touch% /canary/remote\npromisor\n'
    "[extensions]\npartialClone=origin\n[protocol]\nallow=always\n",
    "included": '[diff "x"]\ntextconv=touch /canary/textconv\n[core]\nattributesFile=/srv/project/.gitattributes\n',
    ".gitattributes": "* filter=x diff=x\n",
}
"""Files of a hostile repository; programs, modules and hooks come on top. Whatever is run leaves a canary."""
FUNCTIONS = f"""
programs() {{ mkdir -p /odd; printf '#!/bin/sh\\n%s\\n' "$1" > /odd/any; chmod 755 /odd/any
    for name in {PROGRAMS}; do cp /odd/any /odd/$name; done; }}
credential_programs() {{ programs 'touch /canary/credential'; cd /odd; rm {PROGRAMS}
    cp any kube-plugin; mv any docker-credential-x; }}
listen='import socket, time; s = socket.socket(socket.AF_UNIX); s.bind("/run/silent.sock"); s.listen(); time.sleep(90)'
silent() {{ (exec /usr/bin/python3 -c "$listen") < /dev/null > /dev/null 2>&1 & sleep 0.4; }}
another() {{ exec setpriv --reuid ${{id:-65534}} --regid ${{id:-65534}} --clear-groups "$@"; }}
cd /srv/project
"""
SCRIPT = r"""
R=$1; base=$2; machine=$3; start=$4; shift 4
set -e
mount -t tmpfs -o size=2g none $R; mkdir $R/u $R/w $R/m $R/p
mount -t proc proc $R/p
mount -t overlay overlay -o lowerdir=$base/lower:/,upperdir=$R/u,workdir=$R/w $R/m
mount -t proc proc $R/m/proc; mount --rbind /dev $R/m/dev; mount --rbind /sys $R/m/sys
ip link set lo up; ip link add v type veth peer name w; ip addr add 10.255.0.1/24 dev v; ip link set v up; ip link set w up
ip neigh add 10.255.0.2 lladdr 02:00:00:00:00:01 dev v nud permanent; ip route add default via 10.255.0.2
echo nameserver 10.255.0.2 > $R/m/etc/resolv.conf
set +e
chroot $R/m bash -c "$machine" > /dev/null 2>&1
touch $R/before; sleep 0.02
began=$EPOCHREALTIME
chroot $R/m bash -c "$start" sh "$@" < /dev/null > $R.out 2> $R.err
echo $? > $R.code
echo "$EPOCHREALTIME - $began" > $R.times
sleep 0.1
cat $R/p/[0-9]*/comm > $R.left
find $R/u -newer $R/before ! -path '*/u/srv/project*' ! -path '*/u/odd*' ! -path '*/__pycache__*' \( ! -type d -o -empty \) -print0 |
    tr '\n\0' ' \n' | sed "s,^$R/u,," | sort > $R.files
ls $R/u/canary > $R.canaries 2> /dev/null
"""
KEPT = ("/.local", "/devkit/versions", "/data/devkit")
"""Below the home folder: what devkit keeps of the versions that it wrote."""
PARENTS = {
    "",
    *(
        f"/{name}"
        for name in ("srv", "tmp", "home", "canary", "home/dev", "mnt", "root", "etc", "run", "usr", "var/tmp")
    ),
}
"""Their own time changes when something in them comes and goes."""
SIGNS = (
    "Traceback (most",
    "Fatal Python",
    "Exception ignored",
    "bug in devkit",
    "DeprecationWarning",
    "ResourceWarning",
)
OF_THE_SYSTEM = {"bash", "cat", "python3", "sleep", "sh", "setsid"}


def write_repository(root: Path) -> None:
    """Write a repository in which everything that a program could run of its working folder leaves a canary."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    files = dict(REPOSITORY)
    for folder in ("", "bin/", ".venv/bin/", "node_modules/.bin/"):
        for name in [*PROGRAMS.split(), *SEARCHED]:
            files[f"{folder}{name}"] = f"#!/bin/sh\ntouch /canary/program-{name}\n"
    for folder in ("", "lib/python3.11/site-packages/", ".venv/lib/python3.11/site-packages/"):
        files[f"{folder}x.pth"] = "import os; open('/canary/pth', 'w').close()\n"
        for name in MODULES.split():
            files[f"{folder}{name}.py"] = f"open('/canary/module-{name}', 'w').close()\nraise SystemExit(77)\n"
    for name in ("post-index-change", "post-checkout", "fsmonitor-watchman", "reference-transaction", "pre-commit"):
        files[f".git/hooks/{name}"] = f"#!/bin/sh\ntouch /canary/hook-{name}\n"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
        (root / name).chmod(0o755 if content.startswith("#!") else 0o644)


def prepare(base: Path, devkit: str) -> None:
    """Write what each run finds: a home, two repositories, one of them with a dev container, and facts of two machines."""
    lower = base / "lower"
    for folder in ("home/dev", "canary", "srv"):
        (lower / folder).mkdir(parents=True)
    (lower / "canary").chmod(0o777)
    write_repository(lower / "srv/project")
    write_repository(lower / "srv/ready")
    for name, machine in (("a", "a100-ok"), ("b", "ubuntu-4090-ok")):
        shutil.copy(facts_file(machine), lower / f"srv/{name}.json")
    subprocess.run(
        [devkit, "init", str(lower / "srv/ready"), "--yes", *FIXED], check=True, capture_output=True, cwd=base
    )


def expand(text: str) -> str:
    """Expand the short forms of the table."""
    for short, long in SHORT_FORMS.items():
        text = text.replace(short, long)
    return text


def list_variables(odd: dict[str, Any]) -> list[bytes]:
    """List the variables of an environment as `env` takes them."""
    count, length = odd.get("many", (0, 0))
    named = {**BASE, **odd.get("variables", {}), **{f"VARIABLE_{number}": f"x*{length}" for number in range(count)}}
    words = []
    for name, value in named.items():
        if name not in odd.get("unset", ()):
            part, star, times = value.rpartition("*")
            repeated = expand(part).rpartition(":") if star and times.isdigit() else None
            text = "".join((*repeated[:2], repeated[2] * int(times))) if repeated else expand(value)
            words.append(name.encode() + b"=" + unquote_to_bytes(text))
    return words


def run_one(base: Path, number: int, odd: dict[str, Any], argv: list[str]) -> dict[str, Any]:
    """Run one command in one environment, on a machine of its own. Returns how it ended, and what was wrong with that."""
    work = base / f"run-{number}"
    work.mkdir()
    script = FUNCTIONS + expand(odd.get("machine", ""))
    start = FUNCTIONS + odd.get("start", 'exec "$@"')
    unshare = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--uts",
        "--ipc",
        "--fork",
        "--kill-child",
        "bash",
        "-c",
        SCRIPT,
        "sh",
    ]
    words = [str(work), str(base), script, start, "/usr/bin/env", "-i", *list_variables(odd), *argv]
    null = subprocess.DEVNULL
    process = subprocess.Popen([*unshare, *words], stdin=null, stdout=null, stderr=null)
    timer = Timer(KILLED_AFTER_S, process.kill)
    timer.start()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    timer.cancel()
    parts = ("out", "err", "code", "times", "left", "files", "canaries")
    told = {part: _take(work.with_name(f"{work.name}.{part}")) for part in parts}
    work.rmdir()
    ended, _, began = told["times"].partition(" - ")
    row = {
        "environment": odd["name"],
        "command": odd["command"],
        "code": int(told["code"] or -9),
        "seconds": round(float(ended) - float(began), 2) if began else float(KILLED_AFTER_S),
        "megabytes": used.ru_maxrss >> 10,
        "says": [line[:120] for line in (told["err"] or told["out"]).strip().splitlines()[:1]],
    }
    return row | {"problems": list(_judge(row, odd, told))}


def _judge(row: dict[str, Any], odd: dict[str, Any], told: dict[str, str]) -> Any:  # noqa: ANN401 - a generator of texts
    said = told["out"] + told["err"]
    if not told["times"]:
        yield "hung"
    elif row["code"] not in odd.get("codes", (0, 1, 2)):
        yield f"exit {row['code']}"
    elif row["seconds"] > MAX_SECONDS:
        yield "slow"
    if row["megabytes"] > MAX_MEGABYTES:
        yield "large"
    if any(sign in said for sign in SIGNS):
        yield "traceback"
    if SECRET in said:
        yield "secret"
    if told["canaries"]:
        yield "ran: " + " ".join(told["canaries"].split())
    left = set(told["left"].split()) - OF_THE_SYSTEM
    if left:
        yield f"left running: {' '.join(sorted(left))}"
    may_write = (*KEPT, *odd.get("writes", ()))
    files = [
        name
        for name in told["files"].splitlines()
        if name not in PARENTS and not any(part in name for part in may_write)
    ]
    if files and not told["canaries"]:
        yield f"wrote: {' '.join(files[:3])}"


def _take(path: Path) -> str:
    """Read the beginning of what a run left, and remove it."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        text = file.read(5_000_000).decode(errors="replace")
    path.unlink()
    return text


def main() -> int:
    """Run the table and record it; 1 where anything was wrong."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devkit", default=shutil.which("devkit"), help="the command of a wheel that was installed")
    parser.add_argument(
        "--group", choices=table, action="append", help="only these; the others stay recorded as they are"
    )
    parser.add_argument("--only", default="", help="only environments with these words in their name; records nothing")
    parser.add_argument(
        "--command", choices=MAIN | OTHERS, action="append", help="only these commands; records nothing"
    )
    parser.add_argument("--again", action="store_true", help="only what was recorded with problems, one at a time")
    options = parser.parse_args()
    commands, others = MAIN | OTHERS, list(OTHERS)
    kept = RESULTS / f"{NAME}.json"
    known = json.loads(kept.read_text())["groups"] if kept.exists() else {}
    recorded = {(row["environment"], row["command"]) for group in known.values() for row in group["problems"]}
    work = [
        {"name": name, "group": group, "command": command, **odd}
        for group in options.group or table
        for number, (name, odd) in enumerate(table[group].items())
        for command in options.command or (*MAIN, *(others[(number * 3 + each) % len(others)] for each in range(3)))
        if options.only in name and (not options.again or (name, command) in recorded)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="odd-", dir="/dev/shm") as folder,
        ThreadPoolExecutor(1 if options.again else os.cpu_count()) as pool,
    ):
        base = Path(folder)
        base.chmod(0o755)
        prepare(base, options.devkit)
        lines = [[options.devkit, *commands[odd["command"]]] for odd in work]
        rows = []
        for row in pool.map(run_one, [base] * len(work), range(len(work)), work, lines):
            rows.append(row)
            if row["problems"] or options.command:
                print(" | ".join(str(row[key]) for key in row), flush=True)
    for group in options.group or table:
        found = [row for odd, row in zip(work, rows, strict=True) if odd["group"] == group]
        problems = [row for row in found if row["problems"]]
        if options.again:
            known[group] = {**known[group], "problems": problems}
            continue
        known[group] = {
            "environments": len(table[group]),
            "runs": len(found),
            "codes": dict(sorted(Counter(str(row["code"]) for row in found).items())),
            "seconds_at_most": max((row["seconds"] for row in found), default=0),
            "megabytes_at_most": max((row["megabytes"] for row in found), default=0),
            "problems": problems,
        }
    count = sum(bool(row["problems"]) for row in rows)
    print(f"{len({odd['name'] for odd in work})} environments, {len(rows)} runs, {count} with problems")
    if not options.only and not options.command:
        record(NAME, {"groups": known})
    return int(bool(count))


if __name__ == "__main__":
    raise SystemExit(main())
