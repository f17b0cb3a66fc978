from devkit.facts.values import Release, Unknown
from devkit.probe.engine.client import read_compose
from tests.cases import cases
from tests.hosts import written

DOCKER = '[nodes]\n"/usr/bin/docker" = { kind = "file", mode = 0o755 }\n'
SYSTEM_PLUGIN = DOCKER + '"/usr/libexec/docker/cli-plugins/docker-compose" = { kind = "file", mode = 0o755 }\n'
ASKED = '[[command]]\nargv = ["docker", "compose", "version", "--short"]\n'
ANSWERED = '[[command]]\nargv = ["/usr/libexec/docker/cli-plugins/docker-compose", "version", "--short"]\n'


@cases(
    "text, found",
    {
        "no docker command": ("", None),
        "a plugin alone": (SYSTEM_PLUGIN.replace("/usr/bin/docker", "/x/docker") + ANSWERED + 'out = "2.40.3"', None),
        "no plugin": (DOCKER + ASKED + "code = 1\nerr = \"'compose' is not a docker command\"", None),
        "a plugin somewhere else": (DOCKER + ASKED + 'out = "2.40.3\\n"', Release.parse("2.40.3")),
        "the system's plugin": (SYSTEM_PLUGIN + ANSWERED + 'out = "2.40.3\\n"', Release.parse("2.40.3")),
        "a packaged version": (SYSTEM_PLUGIN + ANSWERED + 'out = "v2.26.1-4\\n"', Release.parse("2.26.1-4")),
        "no answer": (SYSTEM_PLUGIN + ANSWERED + "code = 124", "`docker compose version` did not answer in time"),
        "no version": (SYSTEM_PLUGIN + ANSWERED + 'out = "dev"', "docker compose version printed 'dev'"),
    },
)
def test_the_plugin_is_found_absent_or_unknown(tmp_path, text, found):
    answer = read_compose(written(tmp_path, text))
    if found is None:
        assert answer is None
    else:
        assert (answer.reason if isinstance(answer, Unknown) else answer.version) == found


def test_the_users_own_plugin_comes_first(tmp_path):
    folder = "/h/.docker/cli-plugins"
    own = f'"{folder}/docker-compose" = {{ kind = "file", mode = 0o755 }}\n'
    command = f'[[command]]\nargv = ["{folder}/docker-compose", "version", "--short"]\nout = "2.41.0"\n'
    answer = read_compose(written(tmp_path, '[env]\nHOME = "/h"\n' + SYSTEM_PLUGIN + own + command))
    assert str(answer.version) == "2.41.0"
