"""Secrets of every kind, planted in every file of a project and in a log: no output and no written file repeats one."""

import asyncio
import json
import re

import pytest

from devkit.cli.mcp_server import build_server
from devkit.facts.secrets import count_removed, redact_tokens
from tests.render.injection import FIXED, ran, tree

ADA = ("--gpu", "RTX 4090", "--driver", "570.124.06")

A, HEX, B64, WORD = "aB3" * 12, "0a1b2c3d" * 5, "QWxhZGRpbjpvcGVuIHNlc2FtZQ", "zQ7hunter2Xk9"
PLANTED = {
    "Hugging Face": f"hf_{A}",
    "Hugging Face, organization": f"api_org_{A}",
    "GitHub, personal": f"ghp_{A}",
    "GitHub, fine-grained": f"github_pat_{A}",
    "GitLab": f"glpat-{A}",
    "GitLab, runner": f"glrt-{A}",
    "OpenAI": f"sk-proj-{A}",
    "Anthropic": f"sk-ant-api03-{A}",
    "NVIDIA": f"nvapi-{A}",
    "AWS key id": "AKIAIOSFODNN7PLANTED",
    "Google, API key": f"AIza{A[:35]}",
    "Google, OAuth": f"ya29.{A}",
    "Slack": f"xoxb-{A}",
    "Slack, app": f"xapp-1-{A}",
    "Slack, webhook": f"hooks.slack.com/services/T{A[:8]}/B{A[:8]}/{A[:24]}",
    "Discord, webhook": f"discord.com/api/webhooks/123456789/{A}",
    "Telegram": f"123456789:AA{A[:33]}",
    "JSON web token": f"eyJ{A}.{A}.{A}",
    "Docker Hub": f"dckr_pat_{A}",
    "PyPI": f"pypi-{A}",
    "npm": f"npm_{A}",
    "Groq": f"gsk_{A}",
    "Replicate": f"r8_{A}",
    "Databricks": f"dapi{HEX}",
    "DigitalOcean": f"dop_v1_{HEX}",
    "Vault": f"hvs.{A}",
    "Stripe": f"sk_live_{A}",
    "SendGrid": f"SG.{A[:22]}.{A}",
    "Atlassian": f"ATATT3x{A}",
    "Azure, storage": f"AccountKey={A}{A}==",
    "Azure, signature": f"https://a.blob.core.windows.net/x?sv=1&sig={A}",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----{A}{A}-----END OPENSSH PRIVATE KEY-----",
    "basic authorization": f"Authorization: Basic {B64}",
    "bearer": f"Authorization: Bearer {A}",
    "login in an address": f"https://me:{A}@pypi.example.org/simple",
    "netrc": f"machine example.org login me password {A}",
    "Docker's config": f'"auth": "{B64}"',
    "Hugging Face in base64": "aGZfYUIzYUIzYUIzYUIzYUIzYUIzYUIz",
}
EVERYDAY = """\
DB_PASSWORD: VALUE
PGPASSWORD=VALUE
"password": "VALUE"
passwd VALUE
api-key: VALUE
x-api-key: VALUE
Set-Cookie: session=VALUE; Path=/
Cookie: a=VALUE; b=VALUE
curl -u bob:VALUE https://x.example/y
curl --user bob:VALUE https://x.example/y
sshpass -p VALUE ssh box
mysql -u root -pVALUE
docker login -u me -p VALUE
login me password VALUE
AWS_SECRET_ACCESS_KEY = "VALUE"
https://x.example/?secret_key=VALUE&x=1
os.environ["DB_PASS"] = "VALUE"
--set password=VALUE
--api-key VALUE
"client_secret":"VALUE"
dbPassword: VALUE
{"auth": {"token": "VALUE"}}
MONGO_PWD='VALUE'
redis password is VALUE
Authorization: Bearer VALUE
ENV API_TOKEN=VALUE
SECRET_KEY_BASE=VALUE
jdbc:postgresql://db/x?user=u&password=VALUE
putenv('DB_PASSWORD', 'VALUE')
password=>VALUE
POSTGRES_PASSWORD=VALUE
MYSQL_ROOT_PASSWORD: VALUE
MINIO_ROOT_PASSWORD='VALUE'
requirepass VALUE
redis-cli -a VALUE ping
spring.datasource.password=VALUE
ALTER USER bob WITH PASSWORD 'VALUE';
IDENTIFIED BY 'VALUE'
mongodb://bob:VALUE@db:27017/x
postgresql+psycopg2://bob:VALUE@db/x
Authorization: Token VALUE
X-Auth-Token: VALUE
PRIVATE-TOKEN: VALUE
X-Vault-Token: VALUE
curl -H 'api-key: VALUE'
wget --password=VALUE https://x
http --auth bob:VALUE GET x
PGPASSWORD=VALUE psql -h db
export WANDB_API_KEY=VALUE
set AWS_SECRET_ACCESS_KEY=VALUE
setx OPENAI_API_KEY "VALUE"
$env:AZURE_CLIENT_SECRET = "VALUE"
aws_secret_access_key = VALUE
"accessToken": "VALUE"
<password>VALUE</password>
//registry.npmjs.org/:_authToken=VALUE
mlflow: MLFLOW_TRACKING_PASSWORD -> VALUE
DefaultEndpointsProtocol=https;AccountName=a;AccountKey=VALUE
Server=db;User Id=sa;Password=VALUE;
jdbc:mysql://db/x?user=a&password=VALUE
kubectl create secret generic s --from-literal=pw=VALUE
helm install x --set auth.rootPassword=VALUE
docker build --build-arg NPM_TOKEN=VALUE .
docker run -e DB_PASS=VALUE img
gh auth login --with-token <<< VALUE
huggingface-cli login --token VALUE
neptune.init_run(api_token="VALUE")
comet_ml.login(api_key='VALUE')
ssh-keygen -N 'VALUE' -f k
openssl enc -pass pass:VALUE -in x
RABBITMQ_DEFAULT_PASS=VALUE
amqp://bob:VALUE@mq:5672
ELASTIC_PASSWORD: VALUE
elasticsearch -E bootstrap.password=VALUE
ldapsearch -w VALUE -b x
sqlcmd -U sa -P VALUE -S db
smbclient //h/s -U bob%VALUE
rclone config create r s3 secret_access_key VALUE
restic: RESTIC_PASSWORD=VALUE
borg: BORG_PASSPHRASE='VALUE'
GRAFANA_ADMIN_PASSWORD=VALUE
admin_password = VALUE
influx --token VALUE ping
INFLUX_TOKEN=VALUE
vault login VALUE
consul: CONSUL_HTTP_TOKEN=VALUE
nats --password VALUE sub x
clickhouse-client --password=VALUE
clickhouse-client --password VALUE
snowsql -o password=VALUE
az login -u bob -p VALUE
az storage --account-key VALUE ls
oc login --token=VALUE
kubectl --token VALUE get x
apiVersion: v1, stringData: pw: VALUE
wandb login VALUE
clearml: api.credentials { secret_key: "VALUE" }
dvc remote modify r password 'VALUE'
keytool -storepass VALUE -list
zip -P VALUE a.zip x
gpg --passphrase VALUE -d x
twine upload -u me -p VALUE dist/x
npm config set //r/:_authToken VALUE
JENKINS_API_TOKEN: 'VALUE'
sentry dsn: https://VALUE@sentry.io/1
smtp_pass => 'VALUE'
DATABASE_URL=mysql://bob:VALUE@db/x
X-CSRF-Token: VALUE
""".replace("VALUE", WORD).splitlines()
"""How the manuals of widely used programs write a password, where the value has no shape of its own."""
CORES = sorted({A[:20], WORD, HEX, B64, "AKIAIOSFODNN7PLANTED", "aGZfYUIzYUIz"})
"""The parts of the values that no output may hold."""


def test_a_text_of_every_kind_is_redacted():
    assert len(PLANTED) + len(EVERYDAY) >= 140
    for secret in (*PLANTED.values(), *EVERYDAY):
        left = redact_tokens(f"before {secret}\nafter")
        assert left.startswith("before ") and left.endswith("\nafter"), secret
        assert not leaks(left), secret
        assert count_removed(secret, redact_tokens(secret)) >= 1
        assert secret in PLANTED.values() or re.findall(r"\w+", secret)[0] in left, "the key or the program stays"
        if secret in EVERYDAY and not re.search("ookie|bob|Authorization|-N|pass:|oc login|dsn", secret):
            assert left == f"before {secret.replace(WORD, 'redacted')}\nafter", "nothing but the value is taken"


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / ".devcontainer").mkdir(parents=True)
    values = [*PLANTED.values(), *EVERYDAY]
    lines = [json.dumps(value) for value in values]
    (root / "Dockerfile").write_text(
        "FROM python:3.11\n"
        + "".join(
            f"ARG T{n}={line}\nENV E{n}={line}\nRUN echo {line}\nLABEL l{n}={line}\n" for n, line in enumerate(lines)
        )
    )
    environment = "".join(f"      E{n}: {line}\n" for n, line in enumerate(lines))
    (root / "compose.yaml").write_text(
        f"services:\n  app:\n    build: {{context: ., dockerfile: Dockerfile}}\n    environment:\n{environment}"
    )
    container = {
        "dockerComposeFile": "../compose.yaml",
        "service": "app",
        "containerEnv": {f"E{n}": value for n, value in enumerate(values)},
        "remoteEnv": {f"R{n}": value for n, value in enumerate(values)},
        "postCreateCommand": " && ".join(f"echo {line}" for line in lines),
    }
    (root / ".devcontainer/devcontainer.json").write_text(json.dumps(container))
    (root / "requirements.txt").write_text(
        f"--index-url https://me:{A}@pypi.example.org/simple\npeft\ngit+https://me:{A}@example.org/apex.git#egg=apex\n"
        + "".join(f"# {value}\n" for value in values)
    )
    (root / ".env").write_text("".join(f"E{n}={value}\n" for n, value in enumerate(values)))
    return root


def leaks(text):
    return [core for core in CORES if core in text]


@pytest.mark.parametrize("style", ["text", "json", "sarif", "markdown", "html"])
def test_no_form_of_the_report_repeats_one(project, style):
    done = ran(project, "doctor", "--format", style, "--verbose", "--save-facts", "../facts.json")
    assert done.code in (0, 1), done.err
    assert not leaks(done.out + done.err)
    assert "Facts saved to ../facts.json." in done.err
    assert not leaks((project.parent / "facts.json").read_text())


@pytest.mark.parametrize("secret", EVERYDAY[::5])
def test_no_message_about_a_line_repeats_one(tmp_path, secret):
    (tmp_path / "requirements.txt").write_text(f"torch\n{secret}\n")
    done = ran(tmp_path, "plan", "--no-resolve", *ADA)
    assert not leaks(done.out + done.err)


TEXT = "CUDA driver version is insufficient for CUDA runtime version\n" + "\n".join([*PLANTED.values(), *EVERYDAY])


def test_no_answer_to_a_log_repeats_one(project):
    for words in ((), ("--json",), ("--new", "case.json")):
        done = ran(project, "explain", TEXT, "--no-facts", *words)
        assert done.code in (0, 1), done.err
        assert not leaks(done.out + done.err)
    assert not leaks((project / "case.json").read_text())


@pytest.mark.parametrize("secret", [*EVERYDAY[::9], *list(PLANTED.values())[::9]])
def test_no_answer_to_a_line_repeats_one(tmp_path, secret):
    done = ran(tmp_path, "explain", f"OSError: bad line: {secret}", "--no-facts")
    assert "OSError" in done.out and not leaks(done.out + done.err)


def test_no_tool_of_an_assistant_repeats_one(project):
    server = build_server(project=project)
    for tool, arguments in (("explain", {"text": TEXT}), ("check_project", {}), ("preview_init", {})):
        assert not leaks(str(asyncio.run(server.call_tool(tool, arguments))))


COMPOSE = """\
services:
  app:
    image: pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime
    environment: VALUES
    deploy:
      resources: {reservations: {devices: [{driver: nvidia, count: 1}]}}
    labels: VALUES
"""


def test_no_diff_repeats_one(tmp_path):
    (tmp_path / ".devcontainer").mkdir()
    values = json.dumps({f"Key{n}": value for n, value in enumerate([*PLANTED.values(), *EVERYDAY])})
    (tmp_path / "compose.yaml").write_text(COMPOSE.replace("VALUES", values))
    (tmp_path / ".devcontainer/devcontainer.json").write_text(
        f'{{"dockerComposeFile": "../compose.yaml", "service": "app", "containerEnv": {values}}}'
    )
    (tmp_path / "requirements.txt").write_text("torch\n")
    for words in (("init", ".", "--dry-run", "--diff", "--no-resolve", *ADA), ("doctor", "--fix", "--no-trial")):
        done = ran(tmp_path, *words)
        assert done.code in (0, 1), done.err
        assert "Key0" in done.out + done.err
        assert not leaks(done.out + done.err)


def test_init_writes_none(project):
    before = tree(project)
    done = ran(project, "init", ".", "--yes", "--no-resolve", *(f"--{name}={value}" for name, value in FIXED.items()))
    assert done.code in (0, 1, 2), done.err
    assert not leaks(done.out + done.err)
    for path, content in done.files.items():
        if before.get(path) is None and not path.endswith(".whl"):
            assert not leaks(content.decode()), path
