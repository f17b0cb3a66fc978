"""Generated shell scripts, run here with stand-ins for what they start."""

import shlex
import subprocess


def ran(script, folder, **variables):
    """What the script tells a stand-in for the command, with the workspace and the token below `folder`."""
    (folder / "bin").mkdir()
    received = folder / "received"
    stub = f'#!/bin/sh\n{{ printf "%s\\n" "$@"; env; pwd; }} >{shlex.quote(str(received))}\nexit 75\n'
    for name in ("devkit", "torchrun", "python"):
        (folder / "bin" / name).write_text(stub)
        (folder / "bin" / name).chmod(0o755)
    (folder / "workspaces/demo").mkdir(parents=True)
    script = script.replace("/workspaces/", f"{folder}/workspaces/").replace("/home/dev/", f"{folder}/home/dev/")
    path = f"{folder}/bin:/usr/bin:/bin"
    script = script.replace("/opt/venv/bin", str(folder / "bin"))
    done = subprocess.run(["bash", "-c", script], env={"PATH": path, **variables}, capture_output=True, check=False)
    return done.returncode, received.read_text().split("\n") if received.exists() else done.stderr.decode()
