"""Labels of a policy, as a real BuildKit reads them."""

import json
from pathlib import Path

from devkit.facts.project import Policy
from devkit.render.container.image import quote_labels
from devkit.render.container.settings import ContainerSettings, FromIndex

from .commands import run
from .conftest import one_engine
from .daemon import Engine

LABELS = {
    "org.example.team": 'the "ML" team',
    "org.example.cost": "$5 a \\ day, ${HOME} and $(id)",
    "org.example.quotes": "it's `so` # {{ here }} \\n \\",
    "org.example.words": "größer als zuvor = 1",
    "org.example.empty": "",
}


@one_engine
def test_every_label_is_in_the_image_to_the_letter(engine: Engine, tmp_path: Path) -> None:
    policy = Policy(required_labels=tuple(LABELS.items()))
    words = quote_labels(ContainerSettings("Demo", "demo", FromIndex("0.1.0"), policy=policy))
    (tmp_path / "Dockerfile").write_text("FROM scratch\nLABEL " + " \\\n    ".join(words) + "\n", encoding="utf-8")
    built = run(engine.on_host("docker", "build", "--quiet", tmp_path), env=engine.env, deadline_s=300).stdout.strip()
    shown = run(engine.on_host("docker", "image", "inspect", built), env=engine.env, deadline_s=60).stdout
    assert json.loads(shown)[0]["Config"]["Labels"] == LABELS
