"""Nothing is published by a simulated run: its metrics are placeholders and its checkpoints stubs.

Experiment trackers are put into the mode in which they do nothing, by their environment variable
and where the script starts them. Calls that upload to hubs and buckets, or change what is there,
are not made. Each such call is reported. Downloads are made as ever. That a script can go on is
done here; that nothing is sent by another way, in the layers below (`sending`).
"""

import sys
from collections.abc import Mapping
from concurrent.futures import Future
from inspect import signature
from typing import Any

from torchtally.isolation.passages import MADE, ClientCall, Passage
from torchtally.isolation.publishing import READING_METHODS

ENVIRONMENT = {
    "WANDB_MODE": "disabled",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
}
"""Variables that trackers read when a run starts without saying otherwise."""
REMOTE = (
    "MLFLOW_TRACKING_URI",
    "TRACKIO_SPACE_ID",
    "TRACKIO_DATASET_ID",
    "TRACKIO_BUCKET_ID",
    "TRACKIO_SERVER_URL",
    "TRACKIO_WEBHOOK_URL",
)
"""Variables that name a server; without them files are written, below the run's folder."""


# Trackers ----------------------------------------------------------------------------------------


def started(call: ClientCall, options: Mapping[str, Any], args: Any, given: Any) -> Any:
    """A tracker's run, with options by which it publishes nothing."""
    call.withhold(f"{call.module.__name__.partition('.')[0]}.{call.name}")
    return call.native(*args, **{**given, **options})


def disabled(call: ClientCall, *args: Any, **given: Any) -> Any:
    return started(call, {"mode": "disabled"}, args, given)


def neptune(call: ClientCall, *args: Any, **given: Any) -> Any:
    return started(call, {"mode": "debug"}, args, given)


def comet(call: ClientCall, *args: Any, **given: Any) -> Any:
    options: dict[str, Any] = {"disabled": True}
    if call.name == "start":
        options = {"experiment_config": call.module.ExperimentConfig(**options)}
    return started(call, options, args, given)


def trackio(call: ClientCall, *args: Any, **given: Any) -> Any:
    """Local, without the places that it would copy its metrics to."""
    places = ("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url")
    known = signature(call.native).parameters
    return started(call, {name: None for name in places if name in known}, args, given)


def logged_in(call: ClientCall, *_: Any, **__: Any) -> bool:
    """A login asks a server, and perhaps the user; a run that publishes nothing needs none."""
    call.withhold(f"{call.module.__name__.partition('.')[0]}.login")
    return True


def mlflow(call: ClientCall, registry: Any, store_uri: Any = None, artifact_uri: Any = None) -> Any:
    """Stand-in of MLflow without the server, whoever names it: what is logged goes to files."""
    utils = sys.modules["mlflow.tracking._tracking_service.utils"]
    uri = str(utils._resolve_tracking_uri(store_uri))
    if is_remote(uri):
        call.withhold(f"mlflow to {uri[:80]}")
        store_uri, artifact_uri = "mlruns", None
    return call.native(registry, store_uri, artifact_uri)


def is_remote(uri: str) -> bool:
    scheme, mark, _ = uri.partition("://")
    return scheme.startswith("databricks") or (bool(mark) and scheme not in ("file", "sqlite"))


# Hubs and buckets --------------------------------------------------------------------------------

HUB_CHANGES = (
    "(create|upload|preupload|delete|update|move|copy|merge|edit|rename|add|hide|comment|change|"
    "super_squash|permanently|request|set|pause|restart|resume|enable|disable|duplicate|scale|"
    "cancel|accept|reject|grant|run_job|run_uv_job|suspend|trigger|rerun|sync|batch|unlike)_?.*"
)
"""Methods of Hugging Face's hub that change something there."""


def hub(call: ClientCall, *args: Any, **options: Any) -> Any:
    """What a caller goes on with: the address that there would be, and a commit of zeros."""
    call.withhold(f"huggingface_hub {call.name}")
    repo_id = options.get("repo_id") or next((a for a in args if isinstance(a, str)), "")
    address = f"https://huggingface.co/{repo_id if '/' in repo_id else f'user/{repo_id}'}"
    answer: Any = None
    if call.name in ("create_repo", "move_repo", "duplicate_repo"):
        answer = call.module.RepoUrl(address)
    elif call.name.startswith(("create_commit", "upload_f", "delete_f")):
        answer = call.module.CommitInfo(
            commit_url=f"{address}/commit/{'0' * 40}",
            commit_message=str(options.get("commit_message", "")),
            commit_description="",
            oid="0" * 40,
        )
    if options.get("run_as_future"):
        future: Future[Any] = Future()
        future.set_result(answer)
        return future
    return answer


AWS_READS = ("Get", "List", "Head", "Describe", "Select", "AssumeRole")
"""Operations that change nothing."""


def aws(call: ClientCall, client: Any, operation_name: str, api_params: Any) -> Any:
    """Every operation of every service of AWS passes here."""
    if operation_name.startswith(AWS_READS):
        return MADE
    call.withhold(f"AWS {operation_name}")
    return {"ResponseMetadata": {"HTTPStatusCode": 200}, "ETag": '""', "UploadId": "withheld"}


def google_files(call: ClientCall, files: Any, method: str, path: str, *_: Any, **__: Any) -> Any:
    """gcsfs tries again for half a minute where a request fails."""
    if method.upper() in READING_METHODS:
        return MADE
    call.withhold(f"gcsfs {method} {path[:60]}")
    return 200, {"Location": "withheld"}, None, b"{}"


def blob(call: ClientCall, *_: Any, **__: Any) -> None:
    package = ".".join(call.module.__name__.split(".")[:3])
    call.withhold(f"{package} {call.name}")


AZURE = (
    "upload_(blob|page|blob_from_url)|(append|stage)_block|commit_block_list|delete_blobs?|"
    "start_copy_from_url|(create|delete)_container"
)
ANSWERS = (
    *(
        Passage(module, "", name, answer)
        for module in ("wandb", "swanlab")
        for name, answer in (("init", disabled), ("login", logged_in))
    ),
    Passage("wandb.sdk.wandb_init", "", "init", disabled),
    Passage("wandb.sdk.wandb_login", "", "login", logged_in),
    Passage("neptune", "", "init_run", neptune),
    Passage("comet_ml", "", "((Existing|Offline)?Experiment)|start", comet),
    Passage("comet_ml", "", "login", logged_in),
    Passage("trackio", "", "init", trackio),
    Passage(
        "mlflow.tracking._tracking_service.registry", "TrackingStoreRegistry", "get_store", mlflow
    ),
    Passage("huggingface_hub.hf_api", "HfApi", HUB_CHANGES, hub),
    Passage("botocore.client", "BaseClient", "_make_api_call", aws),
    Passage("aiobotocore.client", "AioBaseClient", "_make_api_call", aws),
    Passage(
        "google.cloud.storage.blob",
        "Blob",
        "upload_from_(file|filename|string)|delete|rewrite|compose|patch|update|make_public",
        blob,
    ),
    *(
        Passage("azure.storage.blob", owner, AZURE, blob)
        for owner in ("BlobClient", "ContainerClient", "BlobServiceClient")
    ),
    Passage("gcsfs.core", "GCSFileSystem", "_request", google_files),
)
