"""The size of an image, told from its history."""

from devkit.verify.dev_container import ImageReport, parse_image_history

HISTORY = """\
0\tCMD ["sleep" "infinity"]
0\tWORKDIR /workspaces
400\tRUN |2 USER_UID=1000 USER_GID=1000 /bin/sh -c set -eu; useradd dev # buildkit
50\tRUN /bin/sh -c uv venv /opt/devkit && uv pip install --python=/opt/devkit "/mnt/devcontainer/x.whl" # buildkit
3000\tRUN /bin/sh -c umask 002 && uv pip install --requirement=/mnt/requirements.txt # buildkit
70000\tRUN /bin/sh -c umask 002 && uv pip install torch==2.13.0 && python -c 'the plan needs torch' # buildkit
600\tRUN /bin/sh -c pip install --no-cache-dir --target=/opt/uv uv==0.13.9 # buildkit
20\tRUN /bin/sh -c groupadd --system venv && python3 -m venv /opt/venv # buildkit
0\tENV VIRTUAL_ENV=/opt/venv
900\tRUN /bin/sh -c set -eu; for package in gcc; do dpkg-query # buildkit
100\tRUN /bin/sh -c python3 -m venv /opt/venv # what the base image did is its own
2000\tADD rootfs.tar / # buildkit
"""


def test_every_layer_counts_for_the_part_that_made_it():
    assert parse_image_history(HISTORY) == (
        ("base image", 2100),
        ("system packages", 900),
        ("Python environment", 20),
        ("uv", 600),
        ("torch", 70000),
        ("packages of the plan", 3000),
        ("devkit", 50),
        ("user and folders", 400),
    )


def test_the_parts_add_up_to_the_image():
    report = ImageReport("demo-dev", parse_image_history(HISTORY))
    assert report.total_bytes == sum(int(line.partition("\t")[0]) for line in HISTORY.splitlines())


def test_an_image_that_devkit_did_not_describe_is_all_base():
    assert parse_image_history("5\tRUN something\n7\tADD file\n") == (("base image", 12),)


def test_an_unknown_step_is_listed_as_other():
    assert parse_image_history("5\tRUN make cake\n7\tRUN dpkg-query\n") == (("system packages", 7), ("other steps", 5))
