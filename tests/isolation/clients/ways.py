"""A training that publishes in many ways. The server's address is in SERVER.

Before each way it asks the server for /mark/NAME, so that what arrives can be told apart.
"""

import os
import sys
import threading
import traceback
import urllib.request

import torch

SERVER = os.environ["SERVER"]
HOST, PORT = SERVER.removeprefix("http://").split(":")
LOSS = float(torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu").sum())
os.environ |= {
    "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": SERVER, "WANDB_SILENT": "true",
    "HF_ENDPOINT": SERVER,
    "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": SERVER, "AWS_MAX_ATTEMPTS": "1", "STORAGE_EMULATOR_HOST": SERVER,
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_TRACKING_URI": SERVER,
    "COMET_URL_OVERRIDE": SERVER, "COMET_API_KEY": "0" * 25, "CLEARML_API_HOST": SERVER,
    "SWANLAB_API_HOST": SERVER, "HF_TOKEN": "hf_0", "MODELSCOPE_DOMAIN": f"{HOST}:{PORT}",
}  # fmt: skip
WAYS = {}


def way(function):
    WAYS[function.__name__] = function
    return function


@way
def mlflow_by_environment():
    import mlflow

    mlflow.start_run()
    mlflow.log_metric("loss", LOSS)
    mlflow.end_run()


@way
def mlflow_by_client():
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=SERVER)
    run = client.create_run("0")
    client.log_metric(run.info.run_id, "loss", LOSS)


@way
def mlflow_deep_import():
    from mlflow.tracking import set_tracking_uri

    set_tracking_uri(SERVER)
    import mlflow

    mlflow.set_experiment("placeholders")


@way
def mlflow_store():
    from mlflow.store.tracking.rest_store import RestStore
    from mlflow.utils.rest_utils import MlflowHostCreds

    RestStore(lambda: MlflowHostCreds(SERVER)).create_experiment("placeholders")


@way
def mlflow_registry():
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=SERVER, registry_uri=SERVER).create_registered_model("placeholders")


@way
def mlflow_by_requests():
    import requests

    requests.post(f"{SERVER}/api/2.0/mlflow/runs/log-metric", json={"value": LOSS})


@way
def wandb_online():
    import wandb

    run = wandb.init(project="p", mode="online", settings=wandb.Settings(init_timeout=5))
    run.log({"loss": LOSS})
    run.finish()


@way
def wandb_deep_import():
    import wandb
    from wandb.sdk.wandb_init import init

    run = init(project="p", mode="online", settings=wandb.Settings(init_timeout=5))
    run.log({"loss": LOSS})


@way
def wandb_sweep():
    import wandb

    wandb.sweep({"method": "grid", "parameters": {"lr": {"values": [1]}}}, project="p", entity="e")


@way
def wandb_api():
    import wandb

    wandb.Api(timeout=5).create_project("p", entity="e")


@way
def comet_experiment():
    import comet_ml

    comet_ml.Experiment(project_name="p").log_metric("loss", LOSS)


@way
def comet_api():
    from comet_ml.api import API

    API(cache=False)._client.post(f"{SERVER}/api/rest/v2/write/experiment/metric", {"v": LOSS})


@way
def neptune_run():
    import neptune

    neptune.init_run(project="w/p", api_token="x", mode="async", proxies={"http": SERVER})


@way
def swanlab_run():
    import swanlab

    swanlab.init(project="p", mode="cloud")


@way
def trackio_space():
    import trackio

    trackio.init("p", space_id="me/space")
    trackio.log({"loss": LOSS})
    trackio.finish()


@way
def clearml_task():
    from clearml import Task

    Task.init(project_name="p", task_name="t")


@way
def sentry():
    import sentry_sdk

    sentry_sdk.init(dsn=SERVER.replace("//", "//key@") + "/1", traces_sample_rate=1.0)
    sentry_sdk.capture_message(f"loss {LOSS}")
    sentry_sdk.flush(5)


@way
def slack():
    from slack_sdk import WebClient

    WebClient(token="x", base_url=f"{SERVER}/api/").chat_postMessage(channel="c", text=f"{LOSS}")


@way
def slack_webhook():
    from slack_sdk.webhook import WebhookClient

    WebhookClient(f"{SERVER}/services/T/B/x").send(text=f"{LOSS}")


@way
def discord():
    from discord_webhook import DiscordWebhook

    DiscordWebhook(url=f"{SERVER}/api/webhooks/1/x", content=f"{LOSS}").execute()


@way
def telegram():
    import asyncio

    from telegram import Bot

    asyncio.run(Bot("1:x", base_url=f"{SERVER}/bot").send_message(chat_id=1, text=f"{LOSS}"))


@way
def knockknock():
    from knockknock import slack_sender

    slack_sender(webhook_url=f"{SERVER}/hook", channel="c")(lambda: LOSS)()


@way
def hub_upload():
    from huggingface_hub import upload_file

    upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="me/x")


@way
def hub_session():
    from huggingface_hub.utils import get_session

    get_session().post(f"{SERVER}/api/repos/create", json={"name": "x"})


@way
def hub_deep_import():
    from huggingface_hub.utils._http import http_backoff

    http_backoff("POST", f"{SERVER}/api/models/me/x/commit/main", content=b"{}").raise_for_status()


@way
def boto3_put():
    import boto3

    boto3.client("s3").put_object(Bucket="b", Key="k", Body=b"x")


@way
def boto3_upload_file():
    import boto3

    boto3.resource("s3").Bucket("b").upload_file(__file__, "k")


@way
def botocore_session():
    from botocore.awsrequest import AWSRequest
    from botocore.httpsession import URLLib3Session

    URLLib3Session().send(AWSRequest("PUT", f"{SERVER}/b/k", data=b"x").prepare())


@way
def s3fs_write():
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=SERVER)
    with files.open("b/k", "wb") as file:
        file.write(b"x")


@way
def google_storage():
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="p", credentials=AnonymousCredentials())
    client.bucket("b").blob("k").upload_from_string("x")


@way
def google_bucket():
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    storage.Client(project="p", credentials=AnonymousCredentials()).create_bucket("b")


@way
def gcsfs_write():
    import gcsfs

    files = gcsfs.GCSFileSystem(token="anon", endpoint_url=SERVER)
    with files.open("b/k", "wb") as file:
        file.write(b"x")


@way
def azure_blob():
    from azure.storage.blob import BlobClient

    BlobClient(f"{SERVER}/account", "c", "k", retry_total=0, credential=None).upload_blob(b"x")


@way
def azure_deep():
    from azure.storage.blob import ContainerClient

    client = ContainerClient(f"{SERVER}/account", "c", retry_total=0)
    client._client.container.create()


@way
def minio():
    import io

    from minio import Minio

    Minio(
        f"{HOST}:{PORT}", access_key="a", secret_key="b" * 8, secure=False, region="r"
    ).put_object("bucket", "k", io.BytesIO(b"x"), 1)


@way
def modelscope():
    from modelscope.hub.api import HubApi

    HubApi(endpoint=SERVER).create_model("me/x", token="x")


@way
def kaggle():
    from kagglesdk.kaggle_client import KaggleClient

    client = KaggleClient()
    client.http_client()._endpoint = SERVER
    client.datasets.dataset_api_client.create_dataset()


@way
def prometheus():
    from prometheus_client import CollectorRegistry, Gauge, push_to_gateway

    registry = CollectorRegistry()
    Gauge("loss", "loss", registry=registry).set(LOSS)
    push_to_gateway(f"{HOST}:{PORT}", job="train", registry=registry)


@way
def open_telemetry():
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=f"{SERVER}/v1/metrics", timeout=2)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)])
    provider.get_meter("train").create_counter("loss").add(LOSS)
    provider.shutdown()


@way
def posthog():
    from posthog import Posthog

    client = Posthog("key", host=SERVER, sync_mode=True)
    client.capture("loss", distinct_id="me", properties={"loss": LOSS})


@way
def in_a_thread():
    import requests

    url = f"{SERVER}/api/2.0/mlflow/runs/update"
    thread = threading.Thread(target=requests.post, args=(url,), kwargs={"json": {"x": LOSS}})
    thread.start()
    thread.join()


@way
def curl():
    os.system(f"curl -s -X POST -d loss={LOSS} {SERVER}/api/2.0/mlflow/runs/log-metric")


@way
def child_of_wandb():
    import subprocess

    subprocess.run([sys.executable, "-m", "wandb", "sync", "wandb/run"], capture_output=True)


def mark(name):
    urllib.request.urlopen(f"{SERVER}/mark/{name}").read()


def main(names):
    for name in names or WAYS:
        mark(name)
        try:
            WAYS[name]()
            outcome = "went on"
        except BaseException as error:
            outcome = "".join(traceback.format_exception_only(error)).strip().splitlines()
            outcome = f"{type(error).__name__}: {(outcome or [''])[-1][:120]}"
            if os.environ.get("TRACEBACKS"):
                traceback.print_exc()
        print(f"{name}: {outcome}", flush=True)
    mark("end")


if __name__ == "__main__":
    main(sys.argv[1:])
