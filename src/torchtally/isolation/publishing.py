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

    @property
    def is_query(self) -> bool:
        """Whether it is GraphQL that changes nothing."""
        if not re.search(r"/graphql(\?|$)", self.path) or not isinstance(self.body, (str, bytes)):
            return False
        text = self.body if isinstance(self.body, str) else self.body.decode(errors="replace")
        return not re.search(r"\bmutation\b", text)


# Clients -----------------------------------------------------------------------------------------

NOTHING, ANYTHING = re.compile(r"(?!)"), re.compile("")
SEARCHES = re.compile(r"(search|query|list|batch-?get|get-?latest\S*)/?(\?|$)", re.IGNORECASE)
HUB = re.compile(r"/(paths-info/|(oauth|login)\b|api/(whoami|telemetry)|validate-yaml|"
                 r"xet-read-token)")  # fmt: skip
CLIENTS: dict[str, re.Pattern[str]] = {
    "wandb": NOTHING,
    "mlflow": SEARCHES,
    "comet_ml": re.compile(r"/(get|list|query|search)[\w-]*/?(\?|$)"),
    "neptune": re.compile(r"(search|query|get\w*|oauth\S*|token)/?(\?|$)"),
    "neptune_scale": re.compile(r"(search|query|token)/?(\?|$)"),
    "clearml": re.compile(r"/\w+\.(get|find|list|search|ping|login|hello|download)\w*(\?|$)"),
    "swanlab": re.compile(r"/(login|search|list)\b"),
    "trackio": re.compile(r"/api/(get|load|bulk_get|query)\w*"),
    "aim": re.compile(r"/(search|query)\b"),
    "dvclive": NOTHING,
    "dvc_studio_client": NOTHING,
    "litlogger": NOTHING,
    "lightning_sdk": SEARCHES,
    "dagshub": SEARCHES,
    "polyaxon": SEARCHES,
    "determined": re.compile(r"/(search|login)\b"),
    "labml": NOTHING,
    "guild": NOTHING,
    "aimstack": NOTHING,
    "visdom": NOTHING,
    "tensorboard.uploader": NOTHING,
    "huggingface_hub": HUB,
    "hf_xet": NOTHING,
    "modelscope": re.compile(r"/(login|search|list)\b"),
    "modelscope_hub": re.compile(r"/(login|search|list)\b"),
    "kaggle": re.compile(r"/(Get|List|Download|Search|Introspect)\w*(\?|$)"),
    "kagglesdk": re.compile(r"/(Get|List|Download|Search|Introspect)\w*(\?|$)"),
    "kagglehub": re.compile(r"/(Get|List|Download|Search|Introspect)\w*(\?|$)"),
    "botocore": NOTHING,
    "aiobotocore": NOTHING,
    "s3fs": NOTHING,
    "minio": re.compile(r"[?&]select(&|=)"),
    "oss2": NOTHING,
    "obs": NOTHING,
    "qcloud_cos": NOTHING,
    "google.cloud.storage": NOTHING,
    "google.cloud.logging": re.compile(r"entries:list"),
    "google.cloud.monitoring_v3": NOTHING,
    "google.resumable_media": NOTHING,
    "gcsfs": re.compile(r"/token(\?|$)"),
    "azure.storage": re.compile(r"[?&]comp=(query|batch)(&|$)"),
    "azure.ai.ml": SEARCHES,
    "azureml": SEARCHES,
    "adlfs": NOTHING,
    "b2sdk": re.compile(r"/b2_(list|get|authorize|download)\w*"),
    "dropbox": re.compile(r"/(list_folder|search|get_\w+|download)\b"),
    "pydrive2": re.compile(r"/token(\?|$)"),
    "zenodo_client": NOTHING,
    "sentry_sdk": NOTHING,
    "slack_sdk": re.compile(r"(\.(list|info|history|replies|test|members)|files\.info)(\?|$)"),
    "slack": re.compile(r"\.(list|info|history|replies|test|members)(\?|$)"),
    "telegram": re.compile(r"/bot[^/]+/get\w+"),
    "telebot": re.compile(r"/bot[^/]+/get\w+"),
    "telegram_send": re.compile(r"/bot[^/]+/get\w+"),
    "discord_webhook": NOTHING,
    "discord": NOTHING,
    "dhooks": NOTHING,
    "knockknock": NOTHING,
    "pymsteams": NOTHING,
    "apprise": NOTHING,
    "notifiers": NOTHING,
    "twilio": NOTHING,
    "sendgrid": NOTHING,
    "pushover": NOTHING,
    "pushbullet": NOTHING,
    "wxpusher": NOTHING,
    "posthog": re.compile(r"/(decide|flags)/?(\?|$)"),
    "segment": NOTHING,
    "mixpanel": NOTHING,
    "amplitude": NOTHING,
    "datadog": SEARCHES,
    "newrelic": NOTHING,
    "influxdb_client": re.compile(r"/query\b"),
    "prometheus_client": NOTHING,
    "opentelemetry.exporter": NOTHING,
    "langfuse": NOTHING,
    "langsmith": SEARCHES,
    "github": re.compile(r"/search/"),
}
"""Packages of clients: what they ask by a method that changes something elsewhere, as paths."""
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


# Servers -----------------------------------------------------------------------------------------

IDENTITY = ("oauth2.googleapis.com", "accounts.google.com", "iamcredentials.googleapis.com",
            "metadata.google.internal", "169.254.169.254", "login.microsoftonline.com",
            "sts.amazonaws.com")  # fmt: skip
"""Where clients get the token that they download with."""
HOSTS: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(IDENTITY, ANYTHING),
    "wandb.ai": NOTHING,
    "comet.com": CLIENTS["comet_ml"],
    "comet.ml": CLIENTS["comet_ml"],
    "neptune.ai": CLIENTS["neptune"],
    "clear.ml": CLIENTS["clearml"],
    "swanlab.cn": CLIENTS["swanlab"],
    "dagshub.com": SEARCHES,
    "huggingface.co": HUB,
    "hf.co": HUB,
    "router.huggingface.co": ANYTHING,
    "api-inference.huggingface.co": ANYTHING,
    "modelscope.cn": CLIENTS["modelscope"],
    "kaggle.com": CLIENTS["kaggle"],
    "storage.googleapis.com": NOTHING,
    "blob.core.windows.net": CLIENTS["azure.storage"],
    "r2.cloudflarestorage.com": NOTHING,
    "aliyuncs.com": NOTHING,
    "myqcloud.com": NOTHING,
    "sentry.io": NOTHING,
    "hooks.slack.com": NOTHING,
    "slack.com": CLIENTS["slack_sdk"],
    "api.telegram.org": CLIENTS["telegram"],
    "discord.com": NOTHING,
    "discordapp.com": NOTHING,
    "webhook.office.com": NOTHING,
    "api.pushover.net": NOTHING,
    "api.pushbullet.com": NOTHING,
    "api.twilio.com": NOTHING,
    "api.sendgrid.com": NOTHING,
    "api.mailgun.net": NOTHING,
    "api.day.app": NOTHING,
    "ntfy.sh": NOTHING,
    "maker.ifttt.com": NOTHING,
    "oapi.dingtalk.com": re.compile(r"/gettoken"),
    "open.feishu.cn": re.compile(r"_access_token"),
    "qyapi.weixin.qq.com": re.compile(r"/gettoken"),
    "sctapi.ftqq.com": NOTHING,
    "notify-api.line.me": NOTHING,
    "api.line.me": NOTHING,
    "i.posthog.com": CLIENTS["posthog"],
    "google-analytics.com": NOTHING,
    "api.segment.io": NOTHING,
    "api.mixpanel.com": NOTHING,
    "datadoghq.com": SEARCHES,
    "api.github.com": re.compile(r"/search/"),
    "uploads.github.com": NOTHING,
    "zenodo.org": NOTHING,
    "transfer.sh": NOTHING,
    "file.io": NOTHING,
    "pastebin.com": NOTHING,
}
"""Servers that keep or forward what they are sent, subdomains included; as above."""
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
WEBHOOKS = {
    "hooks.slack.com": "ok",
    "slack.com": '{"ok": true}',
    "api.telegram.org": '{"ok": true, "result": {"message_id": 0}}',
    "discord.com": '{"id": "0"}',
    "discordapp.com": '{"id": "0"}',
    "webhook.office.com": "1",
    "api.pushover.net": '{"status": 1}',
    "ntfy.sh": "{}",
    "maker.ifttt.com": "",
    "api.day.app": '{"code": 200}',
    "oapi.dingtalk.com": '{"errcode": 0}',
    "open.feishu.cn": '{"code": 0}',
    "qyapi.weixin.qq.com": '{"errcode": 0}',
    "sctapi.ftqq.com": '{"code": 0}',
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
        return None if HOSTS[host].search(request.path) else request.host
    if BUCKET.search(request.host):
        return request.host
    if PATHS.search(request.path) and not SEARCHES.search(request.path):
        return request.host
    client = client_at(frame)
    return client if client and not CLIENTS[client].search(request.path) else None


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


def answer(request: HttpRequest) -> HttpAnswer:
    """A message to people counts as taken; all else is forbidden, which no client tries again."""
    if (host := named(request.host, WEBHOOKS)) is not None:
        return HttpAnswer(200, "OK", WEBHOOKS[host])
    message = f"{request.method} {request.host}: {WHY}."
    # Where clients look for what a server says: MLflow and AWS, Slack, Telegram, Google.
    said = {"error_code": "PERMISSION_DENIED", "message": message, "error": message, "ok": False}
    return HttpAnswer(403, f"{request.method} {WHY}", json.dumps(said | {"description": message}))
