"""What of the network a simulated run uses: nothing is published, by whichever layer it is sent."""

import json
from pathlib import Path

import pytest

import torchtally
from tests.cli.run_tally import Run, tally_run
from tests.isolation.server import Requests, changing, counting_server
from torchtally.isolation.network import RefusedConnectionError, Watch, limited_network
from torchtally.isolation.passages import Gate
from torchtally.isolation.programs import publishing_command
from torchtally.isolation.publishing import HttpRequest, answer, publisher
from torchtally.trace import EffectKind

LAYERS = {
    "requests": "requests.post(url, json={'loss': LOSS})",
    "urllib": "urllib.request.urlopen(urllib.request.Request(url, b'1.0', method='PUT')).read()",
    "http.client": "connection = http.client.HTTPConnection(url[7:].partition('/')[0])\n"
    "    connection.request('DELETE', '/' + url[7:].partition('/')[2])\n"
    "    connection.getresponse().read()",
    "urllib3": "urllib3.PoolManager(retries=5).request('POST', url, body=b'1.0')",
    "httpx2": "httpx2.patch(url, json={'loss': LOSS})",
    "httpx2, awaited": "async def post():\n"
    "        async with httpx2.AsyncClient() as client:\n"
    "            await client.post(url, json={'loss': LOSS})\n"
    "    asyncio.run(post())",
    "aiohttp": "async def post():\n"
    "        async with aiohttp.ClientSession() as session:\n"
    "            await session.post(url, json={'loss': LOSS})\n"
    "    asyncio.run(post())",
    "a thread": "thread = threading.Thread(target=lambda: requests.post(url, data=b'1.0'))\n"
    "    thread.start(), thread.join()",
}
"""How clients send: each function of a client below is one of these."""
CLIENTS = {
    "wandb.apis.internal": "requests",
    "wandb.sdk.internal.file_stream": "a thread",
    "mlflow.utils.rest_utils": "requests",
    "mlflow.store.artifact.http_repo": "urllib3",
    "comet_ml.connection": "requests",
    "comet_ml.messages": "a thread",
    "neptune.internal.backends": "requests",
    "clearml.backend_api.session": "requests",
    "swanlab.core_python.client": "requests",
    "trackio.remote": "httpx2",
    "aim.ext.transport.client": "aiohttp",
    "dvclive.studio": "requests",
    "litlogger.client": "urllib3",
    "labml.internal.api": "urllib",
    "polyaxon.client": "http.client",
    "botocore.httpsession": "urllib3",
    "aiobotocore.httpsession": "aiohttp",
    "s3fs.errors": "aiohttp",
    "minio.api": "urllib3",
    "google.resumable_media.requests": "requests",
    "gcsfs.retry": "aiohttp",
    "azure.storage.filedatalake": "requests",
    "adlfs.utils": "aiohttp",
    "modelscope.hub.api": "requests",
    "kagglesdk.kaggle_http_client": "requests",
    "sentry_sdk.transport": "a thread",
    "slack_sdk.web.base_client": "urllib",
    "telegram.request": "httpx2, awaited",
    "discord_webhook.webhook": "requests",
    "knockknock.slack_sender": "requests",
    "prometheus_client.exposition": "urllib",
    "opentelemetry.exporter.otlp": "requests",
    "posthog.request": "requests",
}
"""Where real clients have the function that sends, and by which layer it does."""
IMPORTS = "import asyncio, http.client, threading, urllib.request\nimport LAYER\n"
SCRIPT = """\
import importlib, os, sys, urllib.request
import requests, torch
sys.path.insert(0, os.path.abspath("site-packages"))
SERVER, LOSS = sys.argv[1], float(torch.ones(1, device="cuda").sum())

for name in {names}:
    module = importlib.import_module(name)
    module.LOSS = LOSS
    try:
        module.send(f"{{SERVER}}/way/{{name}}")
    except Exception as error:
        print(name, type(error).__name__)
requests.post(f"{{SERVER}}/api/2.0/mlflow/runs/log-metric", json={{"loss": LOSS}})
os.system(f"curl -s -X POST -d {{LOSS}} {{SERVER}}/api/2.0/mlflow/runs/update")

from huggingface_hub.utils import get_session
get_session().post(f"{{SERVER}}/api/repos/create", json={{"name": "x"}})
print("reads", get_session().post(f"{{SERVER}}/api/models/me/x/paths-info/main").status_code)
print("reads", sys.modules["mlflow.utils.rest_utils"].send(f"{{SERVER}}/runs/search"))
print("reads", urllib.request.urlopen(f"{{SERVER}}/download").status)
for _ in range(3):
    requests.post(f"{{SERVER}}/own", data=b"1.0")  # of the script's own
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, and clients that send as the real ones do."""
    folder = tmp_path_factory.mktemp("network")
    for name, layer in CLIENTS.items():
        path = folder / "site-packages" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        package = "urllib3" if layer == "urllib3" else layer.partition(",")[0].partition(" ")[0]
        library = {"urllib": "requests", "http.client": "requests", "a": "requests"}
        imports = IMPORTS.replace("LAYER", f"requests, {library.get(package, package)}")
        path.write_text(f"{imports}\ndef send(url):\n    {LAYERS[layer]}\n")
    (folder / "train.py").write_text(SCRIPT.format(names=[*CLIENTS]))
    return folder


def ran(folder: Path, *options: str) -> tuple[Run, Requests]:
    with counting_server() as (address, requests):
        run = tally_run(*options, "train.py", address, cwd=folder)
        assert run.code == 0, run.stderr
        return run, list(requests)


READS = ["/api/models/me/x/paths-info/main", "/runs/search"]
OWN = ["/own"] * 3


def test_what_clients_publish_does_not_leave_and_reads_do(folder: Path):
    run, requests = ran(folder)
    assert changing(requests) == READS + OWN
    assert ("GET", "/download") in requests
    assert run.stdout.count("reads") == 3
    withheld = [each for each in run.trace.effects if each.kind is EffectKind.WITHHELD]
    for name in {name.partition(".")[0] for name in CLIENTS}:
        assert any(f"({name}" in each.name for each in withheld), name
    assert len(withheld) >= len(CLIENTS) - 3  # of some packages there are two
    (sent,) = [
        each
        for each in run.trace.effects
        if each.kind is EffectKind.SENT and each.frame and "own" in each.frame.text
    ]
    assert (sent.name, sent.count) == ("127.0.0.1", 3)
    assert "Sent for real to these hosts:" in run.stderr
    assert "127.0.0.1, 3 times" in " ".join(run.stderr.split())


def test_all_of_it_arrives_where_the_network_is_on(folder: Path):
    _, requests = ran(folder, "--network", "on")
    paths = changing(requests)
    assert [path for path in paths if path.startswith("/way/")] == [f"/way/{n}" for n in CLIENTS]
    assert {"/api/2.0/mlflow/runs/log-metric", "/api/repos/create", *READS, *OWN} <= set(paths)


OFF = '''\
import subprocess, sys, urllib.request
from urllib.error import URLError
try:
    urllib.request.urlopen(sys.argv[1])
except URLError as error:
    print(error.reason)
code = """
import socket, sys
host, port = sys.argv[1][7:].split(":")
try:
    socket.create_connection((host, int(port)))
except OSError as error:
    print(error)
"""
python = f"{sys.base_prefix}/bin/python3"
print(subprocess.run([python, "-c", code, sys.argv[1]], capture_output=True, text=True).stdout)
'''


def test_off_opens_no_connection_here_or_in_children(tmp_path: Path):
    (tmp_path / "train.py").write_text(OFF)
    with counting_server() as (address, requests):
        run = tally_run("--network", "off", "train.py", address, cwd=tmp_path)
        assert requests == []
    assert run.code == 0, run.stderr
    host = address.removeprefix("http://")
    assert f"tally refused to connect to {host}: this run has --network off." in run.stdout
    assert any(effect.kind is EffectKind.REFUSED for effect in run.trace.effects)
    if run.trace.facts["network"] == "off, by the kernel":
        assert "[Errno 13] Permission denied" in run.stdout
        assert "Network: off, by the kernel" in run.stderr


def test_a_function_has_no_network_either_and_gets_it_back() -> None:
    with counting_server() as (address, requests):

        def function() -> None:
            import urllib.request

            urllib.request.urlopen(address)

        with pytest.raises(OSError, match="--network off"):
            torchtally.run(function, gpu="T4", network="off")
        assert requests == []
        trace = torchtally.run(function, gpu="T4")
        assert requests == [("GET", "/")]
        assert trace.facts["network"] == "downloads"


def test_an_option_that_is_none_of_them_is_an_error(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    run = tally_run("--network", "maybe", "train.py", cwd=tmp_path)
    assert run.code == 2
    assert "downloads" in run.stderr


@pytest.mark.parametrize(
    ("method", "url", "is_published"),
    [
        ("POST", "https://api.wandb.ai/files/me/p/run/file_stream", True),
        ("POST", "https://hooks.slack.com/services/T/B/x", True),
        ("POST", "https://discord.com/api/webhooks/1/x", True),
        ("GET", "https://api.telegram.org/bot1:x/sendMessage?text=1.0", True),
        ("GET", "https://api.telegram.org/bot1:x/getMe", False),
        ("PUT", "https://bucket.s3.us-east-1.amazonaws.com/k?X-Amz-Signature=x", True),
        ("GET", "https://bucket.s3.us-east-1.amazonaws.com/k", False),
        ("POST", "https://huggingface.co/api/models/me/x/commit/main", True),
        ("POST", "https://huggingface.co/api/models/me/x/paths-info/main", False),
        ("POST", "https://router.huggingface.co/v1/chat/completions", False),
        ("POST", "https://oauth2.googleapis.com/token", False),
        ("POST", "https://tracking.example.org/api/2.0/mlflow/runs/create", True),
        ("POST", "https://tracking.example.org/api/2.0/mlflow/runs/search", False),
        ("PUT", "https://example.org/api/2.0/mlflow-artifacts/artifacts/0/r/search", True),
        ("POST", "https://slack.com/api/conversations.list", False),
        ("POST", "https://slack.com/api/chat.postMessage", True),
        ("POST", "https://www.kaggle.com/api/v1/datasets.DatasetApiService/GetDataset", False),
        ("POST", "https://www.kaggle.com/api/v1/blobs.BlobApiService/StartBlobUpload", True),
        ("POST", "https://app.neptune.ai/api/leaderboard/v1/entries/search/", False),
        ("POST", "https://open.feishu.cn/auth/v3/tenant_access_token/internal", False),
        ("PUT", "http://169.254.169.254/latest/api/token", False),
        ("POST", "https://example.org/form", False),
    ],
)
def test_a_request_publishes_by_where_it_goes(method: str, url: str, is_published: bool):
    assert (publisher(HttpRequest.to(method, url), None) is not None) is is_published


def test_graphql_publishes_where_it_changes_something() -> None:
    address = "https://api.wandb.ai/graphql"
    query = HttpRequest.to("POST", address, b'{"query": "query Runs { viewer { id } }"}')
    change = HttpRequest.to("POST", address, '{"query": "mutation UpsertSweep { id }"}')
    unknown = HttpRequest.to("POST", address)
    assert publisher(query, None) is None
    assert publisher(change, None) == publisher(unknown, None) == "api.wandb.ai"


def test_a_message_to_people_counts_as_taken_and_all_else_as_forbidden() -> None:
    assert answer(HttpRequest.to("POST", "https://hooks.slack.com/services/x")).status == 200
    refused = answer(HttpRequest.to("POST", "https://api.wandb.ai/x"))
    assert refused.status == 403
    assert "--network on" in refused.reason


@pytest.mark.parametrize(
    "url",
    ["https://storage.googleapis.com/upload/storage/v1/b/x/o", "http://127.0.0.1:1/storage/v1/b"],
)
def test_a_client_of_google_finds_the_reason_where_it_looks(url: str) -> None:
    error = json.loads(answer(HttpRequest.to("POST", url)).body)["error"]
    assert error["code"] == 403
    assert "not sent, since a simulated run would publish placeholders" in error["message"]


@pytest.mark.parametrize(
    ("command", "is_published"),
    [
        ("wandb sync run-1", True),
        ("python -m wandb sync run-1", True),
        ("cd out && hf upload me/x .", True),
        (["aws", "s3", "cp", "model.pt", "s3://bucket/x"], True),
        (["aws", "s3", "cp", "s3://bucket/x", "model.pt"], False),
        ("gsutil -m rsync -r out gs://bucket/out", True),
        (["sh", "-c", "git push origin main"], True),
        ("git -C repo push", True),
        ("git pull && git log", False),
        ("scp -r out me@host:out", True),
        ("scp me@host:data.tar .", False),
        ("rclone copy out remote:out", True),
        ("curl -d loss=1 https://hooks.slack.com/services/x", True),
        ("curl -L https://huggingface.co/x/resolve/main/y -o y", False),
        ("nvidia-smi", False),
        ('echo "an open quote', False),
    ],
)
def test_a_program_publishes_by_its_arguments(command: object, is_published: bool):
    assert bool(publishing_command(command)) is is_published


def test_other_connections_are_reported_by_the_name_that_was_looked_up() -> None:
    effects: list[tuple[EffectKind, str]] = []
    report = lambda kind, name, frame: effects.append((kind, name))  # noqa: E731
    watch = Watch(Gate(report), report, is_off=False)
    watch.connect(("127.0.0.1", 25), None, is_datagram=False)
    watch.connect("/run/socket", None, is_datagram=False)
    watch.name("mail.example.org", None)
    watch.connect(("192.0.2.1", 25), None, is_datagram=False)
    assert effects == [(EffectKind.SENT, "mail.example.org:25")]
    off = Watch(Gate(report), report, is_off=True)
    with pytest.raises(RefusedConnectionError, match=r"192.0.2.1:9: this run has --network off"):
        off.connect(("192.0.2.1", 9), None, is_datagram=True)


def test_clients_are_as_before_afterwards() -> None:
    import http.client
    import subprocess

    before = http.client.HTTPConnection.putrequest, subprocess.Popen.__init__
    with limited_network("downloads", lambda *call: None):
        assert http.client.HTTPConnection.putrequest is not before[0]
    assert (http.client.HTTPConnection.putrequest, subprocess.Popen.__init__) == before
