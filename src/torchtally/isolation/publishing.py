"""Which requests publish something: by the client whose code makes them, or by where they go.

A request publishes when its method changes something and a client of a service that keeps results
makes it, or when it goes to such a service. Many clients ask by POST, too: what they ask so is
named beside them, and passes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import NamedTuple
from urllib.parse import urlsplit

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "SEARCH"})


class HttpRequest(NamedTuple):
    """A request that is about to be made."""

    method: str
    host: str
    path: str
    """With its query."""
    body: object = None
    """As far as it is known: bytes or a string; None where it is not."""

    @classmethod
    def to(cls, method: str, url: str, body: object = None) -> "HttpRequest":
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return cls(method.upper(), (parts.hostname or "").lower(), path, body)

    @property
    def changes(self) -> bool:
        return self.method.upper() not in READING_METHODS

    def asks(self, kind: str) -> bool:
        """Whether it changes nothing of a service, as one of ASKS says."""
        can_ask = kind == "any" or self.method.upper() == "POST"
        return can_ask and ASKS[kind].search(self.path) is not None

    @property
    def is_query(self) -> bool:
        """Whether it is GraphQL that changes nothing."""
        if not re.search(r"/graphql(\?|$)", self.path) or not isinstance(self.body, (str, bytes)):
            return False
        text = self.body if isinstance(self.body, str) else self.body.decode(errors="replace")
        return not re.search(r"\bmutation\b", text)


# Services ----------------------------------------------------------------------------------------

SERVICES = """
wandb                                                            | wandb.ai                  |
mlflow dagshub lightning_sdk polyaxon determined aim trackio     | dagshub.com               | reads
comet_ml                                                         | comet.com comet.ml        | reads
neptune neptune_scale clearml swanlab            | neptune.ai clear.ml swanlab.cn            | reads
azureml azure.ai.ml langsmith                                    |                           | reads
dvclive dvc_studio_client litlogger labml guild aimstack visdom tensorboard.uploader |       |
huggingface_hub                                                  | huggingface.co hf.co      | hub
                                 | router.huggingface.co api-inference.huggingface.co        | any
modelscope modelscope_hub                                        | modelscope.cn             | reads
kaggle kagglesdk kagglehub                                       | kaggle.com                | reads
b2sdk dropbox pydrive2 gcsfs google.cloud.logging                |                           | reads
google.cloud.storage google.cloud.monitoring_v3 google.resumable_media | storage.googleapis.com |
azure.storage                                                    | blob.core.windows.net     | comp
minio                                                            |                          | select
botocore aiobotocore s3fs oss2 obs qcloud_cos hf_xet             | r2.cloudflarestorage.com  |
adlfs zenodo_client github                       | zenodo.org api.github.com uploads.github.com |
                            | aliyuncs.com myqcloud.com transfer.sh file.io pastebin.com     |
slack_sdk slack                                                  | slack.com                 | reads
telegram telebot telegram_send                                   | api.telegram.org          | reads
                             | oapi.dingtalk.com open.feishu.cn qyapi.weixin.qq.com          | reads
discord discord_webhook dhooks                   | discord.com discordapp.com hooks.slack.com |
knockknock pymsteams apprise notifiers           | webhook.office.com ntfy.sh maker.ifttt.com |
twilio sendgrid pushover pushbullet wxpusher     | api.twilio.com api.sendgrid.com           |
            | api.pushover.net api.pushbullet.com api.mailgun.net api.day.app sctapi.ftqq.com |
                                                 | notify-api.line.me api.line.me            |
posthog datadog influxdb_client                  | i.posthog.com datadoghq.com               | reads
sentry_sdk segment mixpanel amplitude            | sentry.io api.segment.io api.mixpanel.com |
newrelic prometheus_client opentelemetry.exporter langfuse       | google-analytics.com      |
            | oauth2.googleapis.com accounts.google.com iamcredentials.googleapis.com | any
            | metadata.google.internal 169.254.169.254 sts.amazonaws.com              | any
            | login.microsoftonline.com                                               | any
"""
"""What keeps or forwards what it is sent: packages of its clients, hosts with their subdomains, and
which requests that would change something pass, since they ask something: none but these.
"""
ASKS = {
    "": re.compile(r"(?!)"),
    "any": re.compile(""),  # of a model; the token that clients download with
    "reads": re.compile(
        r"[/.:](b2_|bulk_|batch-?)?(get|list|find|load|search|query|download|authorize|introspect|"
        r"login|oauth|token|ping|hello|decide|flags)[\w-]*/?(\?|$)|_token/?(\?|$)|"
        r"/(list_folder|login|search|\w*token)/\w+/?(\?|$)|\.(info|history|replies|test|members)$",
        re.IGNORECASE,
    ),
    "hub": re.compile(
        r"/(paths-info/|(oauth|login)\b|api/(whoami|telemetry)|validate-yaml|"
        r"xet-read-token)"
    ),
    "comp": re.compile(r"[?&]comp=(query|batch)(&|$)"),
    "select": re.compile(r"[?&]select(&|=)"),
}
"""Paths, with their queries, of requests by POST; `any` whatever the method is."""
_ROWS = [[cell.split() for cell in row.split("|")] for row in SERVICES.strip().splitlines()]
CLIENTS = {name: "".join(asks) for clients, _, asks in _ROWS for name in clients}
HOSTS = {name: "".join(asks) for _, hosts, asks in _ROWS for name in hosts}
ASKING = ("huggingface_hub.inference",)
"""Parts of such packages that ask a model, and keep nothing."""


def client_at(frame: FrameType | None) -> str:
    """The innermost package of a client on the stack; "" for none."""
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(ASKING):
            return ""
        parts = name.split(".")
        for length in range(1, min(len(parts), 3) + 1):
            if (package := ".".join(parts[:length])) in CLIENTS:
                return package
        frame = frame.f_back
    return ""


BUCKET = re.compile(r"(^|\.)s3[.-]([\w-]+\.)*amazonaws\.com$")
SENT_BY_GET = re.compile(
    r"api\.telegram\.org/bot[^/]+/(send|edit|forward|copy|delete|pin|set)\w*|"
    r"maker\.ifttt\.com/trigger/|sctapi\.ftqq\.com/|api\.day\.app/|ntfy\.sh/[^/]+/(publish|send)"
)
PATHS = re.compile(
    r"/(ajax-)?api/2\.0/(preview/)?mlflow/|/api/2\.0/mlflow-artifacts/|/files/\S+/file_stream|"
    r"/api/(repos/|(models|datasets|spaces)/\S+/(commit|preupload|branch|tag|settings)\b)|"
    r"/api/\d+/(envelope|store)/|^/v1/(traces|metrics|logs)(\?|$)|/metrics/job/"
)
"""Of servers whose name says nothing: those of MLflow, W&B, Hugging Face, Sentry, OpenTelemetry and
Prometheus.
"""
TAKEN = '{"ok": true, "id": "0", "result": {"message_id": 0}, "code": 0, "errcode": 0, "status": 1}'
MESSENGERS = {
    **dict.fromkeys(("slack.com", "api.telegram.org", "discord.com", "discordapp.com"), TAKEN),
    **dict.fromkeys(("oapi.dingtalk.com", "open.feishu.cn", "qyapi.weixin.qq.com"), TAKEN),
    **dict.fromkeys(("api.pushover.net", "ntfy.sh", "maker.ifttt.com", "sctapi.ftqq.com"), TAKEN),
    "hooks.slack.com": "ok",
    "webhook.office.com": "1",
    "api.day.app": '{"code": 200}',
    "notify-api.line.me": '{"status": 200}',
}
"""What these answer to a message that they have taken."""


def named(host: str, table: Mapping[str, object]) -> str | None:
    """Its row in a table of hosts."""
    return next((row for row in domains(host) if row in table), None)


def domains(host: str) -> Iterator[str]:
    """The host and all domains that it is in."""
    while host:
        yield host
        host = host.partition(".")[2]


def publisher(request: HttpRequest, frame: FrameType | None) -> str | None:
    """The client or server by which a request would publish something; None where it would not."""
    if not request.changes:
        return request.host if SENT_BY_GET.match(request.host + request.path) else None
    if request.is_query:
        return None
    if (host := named(request.host, HOSTS)) is not None:
        return None if request.asks(HOSTS[host]) else request.host
    path = request.path
    if BUCKET.search(request.host):
        return request.host
    if PATHS.search(path) and not request._replace(path=path.partition("/mlflow/")[2]).asks(
        "reads"
    ):
        return request.host
    client = client_at(frame)
    return client if client and not request.asks(CLIENTS[client]) else None


# Answers -----------------------------------------------------------------------------------------


class HttpAnswer(NamedTuple):
    """What the script gets in the server's place."""

    status: int
    reason: str
    body: str

    @property
    def headers(self) -> dict[str, str]:
        kind = "application/json" if self.body[:1] == "{" else "text/plain"
        return {"Content-Type": kind, "Content-Length": str(len(self.body.encode()))}

    @property
    def bytes(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {self.reason}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", self.body]).encode()


WHY = "not sent, since a simulated run would publish placeholders (--network on: send it)"


GOOGLE = re.compile(r"^[^/]*googleapis\.com/|/storage/v1/")
"""Its clients take an error for an object, as those of others for a text."""


def answer(request: HttpRequest) -> HttpAnswer:
    """A message to people counts as taken; all else is forbidden, which no client tries again."""
    if (host := named(request.host, MESSENGERS)) is not None:
        return HttpAnswer(200, "OK", MESSENGERS[host])
    message = f"{request.method} {request.host}: {WHY}."
    is_googles = GOOGLE.search(request.host + request.path) is not None
    error = {"code": 403, "message": message} if is_googles else message
    # Where clients look for what a server says: MLflow and AWS, Slack and Google, Telegram.
    said = {"error_code": "PERMISSION_DENIED", "message": message, "error": error, "ok": False}
    return HttpAnswer(403, f"{request.method} {WHY}", json.dumps(said | {"description": message}))
