"""Nothing is published by a simulated run: its metrics are placeholders and its checkpoints stubs.

Experiment trackers are put into the mode in which they do nothing, by their environment variable
and where the script starts them. Calls that upload to hubs and buckets, or change what is there,
are not made. Each such call is reported. Downloads are made as ever. That a script can go on is
done here; that nothing is sent by another way, in the layers below (`sending`).
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

from torchtally.isolation.publishing import READING_METHODS
from torchtally.isolation.sending import Report, passing
from torchtally.trace import EffectKind
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn

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

DISABLED = {"mode": "disabled"}
WRITING = re.compile(
    "(create|upload|preupload|delete|update|move|copy|merge|edit|rename|add|hide|comment|change|"
    "super_squash|permanently|request|set|pause|restart|resume|enable|disable|duplicate|scale|"
    "cancel|accept|reject|grant|run_job|run_uv_job|suspend|trigger|rerun|sync|batch|unlike)_?"
)
"""Of methods of Hugging Face's hub, those that change something there."""
BUCKET_READING = ("Get", "List", "Head", "Describe", "Select", "AssumeRole")
"""Operations of AWS that change nothing."""


@contextmanager
def environment(values: Mapping[str, str], without: tuple[str, ...]) -> Iterator[None]:
    """Within, these variables are set, and others are not."""
    before = {name: os.environ.get(name) for name in (*values, *without)}
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def answers(report: Report) -> list[tuple[str, Replacements]]:
    """What is replaced in libraries that publish, by module."""
    return [
        ("wandb.sdk.wandb_init", partial(starting, report, "wandb.init", "init", DISABLED)),
        ("wandb.sdk.wandb_login", partial(logging_in, report, "wandb")),
        ("wandb", partial(starting, report, "wandb.init", "init", DISABLED)),
        ("wandb", partial(logging_in, report, "wandb")),
        ("swanlab", partial(starting, report, "swanlab.init", "init", DISABLED)),
        ("swanlab", partial(logging_in, report, "swanlab")),
        ("neptune", partial(starting, report, "neptune.init_run", "init_run", {"mode": "debug"})),
        ("comet_ml", partial(comet, report)),
        ("trackio", partial(trackio, report)),
        ("mlflow.tracking._tracking_service.registry", partial(mlflow, report)),
        ("huggingface_hub.hf_api", partial(hub, report)),
        ("botocore.client", partial(botocore, report)),
        ("aiobotocore.client", partial(aiobotocore, report)),
        ("google.cloud.storage.blob", partial(google_blob, report)),
        ("azure.storage.blob", partial(azure_blob, report)),
        ("gcsfs.core", partial(google_files, report)),
    ]


# Trackers ----------------------------------------------------------------------------------------


def starting(
    report: Report, shown: str, name: str, options: Mapping[str, Any], module: Any
) -> list[StandIn]:
    """The function that starts a tracker's run, given options by which it publishes nothing."""
    native = getattr(module, name, None)
    if native is None:
        return []

    @wraps(native)
    def start(*args: Any, **given: Any) -> Any:
        report(EffectKind.WITHHELD, shown, sys._getframe(1))
        return native(*args, **{**given, **options})

    return [StandIn(module, name, start)]


def logging_in(report: Report, shown: str, module: Any) -> list[StandIn]:
    """A login asks a server, and perhaps the user; a run that publishes nothing needs none."""

    def login(*args: Any, **options: Any) -> bool:
        report(EffectKind.WITHHELD, f"{shown}.login", sys._getframe(1))
        return True

    return [StandIn(module, "login", login)] if hasattr(module, "login") else []


def comet(report: Report, module: Any) -> list[StandIn]:
    """Experiments that are made disabled."""
    stand_ins = []
    for name in ("Experiment", "ExistingExperiment", "OfflineExperiment"):
        stand_ins += starting(report, f"comet_ml.{name}", name, {"disabled": True}, module)
    native = getattr(module, "start", None)
    if native is not None:

        @wraps(native)
        def start(*args: Any, **options: Any) -> Any:
            report(EffectKind.WITHHELD, "comet_ml.start", sys._getframe(1))
            options["experiment_config"] = module.ExperimentConfig(disabled=True)
            return native(*args, **options)

        stand_ins.append(StandIn(module, "start", start))
    return [*stand_ins, *logging_in(report, "comet_ml", module)]


def trackio(report: Report, module: Any) -> list[StandIn]:
    """Local, without the places that it would copy its metrics to."""
    known = signature(module.init).parameters
    nothing = {name: None for name in TRACKIO_PLACES if name in known}
    return starting(report, "trackio.init", "init", nothing, module)


TRACKIO_PLACES = ("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url")


def mlflow(report: Report, module: Any) -> list[StandIn]:
    """Without the server, whoever names it: what is logged goes to files."""
    native, reported = module.TrackingStoreRegistry.get_store, set[str]()

    @wraps(native)
    def get_store(registry: Any, store_uri: Any = None, artifact_uri: Any = None) -> Any:
        utils = sys.modules["mlflow.tracking._tracking_service.utils"]
        uri = str(utils._resolve_tracking_uri(store_uri))
        if is_remote(uri):
            if uri not in reported:  # each call of MLflow asks for its store
                report(EffectKind.WITHHELD, f"mlflow to {uri[:80]}", sys._getframe(1))
                reported.add(uri)
            store_uri, artifact_uri = "mlruns", None
        return native(registry, store_uri, artifact_uri)

    return [StandIn(module.TrackingStoreRegistry, "get_store", get_store)]


def is_remote(uri: str) -> bool:
    scheme, mark, _ = uri.partition("://")
    return scheme.startswith("databricks") or (bool(mark) and scheme not in ("file", "sqlite"))


# Hubs and buckets --------------------------------------------------------------------------------


def hub(report: Report, module: Any) -> list[StandIn]:
    """`HfApi`, and the functions of the module that are methods of one object of it."""
    api = module.HfApi
    names = [name for name in dir(api) if WRITING.match(name) and callable(getattr(api, name))]
    stand_ins = [StandIn(api, name, withheld_by_hub(report, module, name)) for name in names]
    methods = {each.name: each.value for each in stand_ins}
    for name, value in list(vars(module).items()):
        if getattr(value, "__name__", "") in methods and hasattr(value, "__self__"):
            stand_ins.append(
                StandIn(module, name, partial(methods[value.__name__], value.__self__))
            )
    return stand_ins


def withheld_by_hub(report: Report, module: Any, name: str) -> Callable[..., Any]:
    """What a caller goes on with: the address that there would be, and a commit of zeros."""

    def method(api: Any, *args: Any, **options: Any) -> Any:
        report(EffectKind.WITHHELD, f"huggingface_hub {name}", sys._getframe(1))
        repo_id = options.get("repo_id") or next((a for a in args if isinstance(a, str)), "")
        address = f"https://huggingface.co/{repo_id if '/' in repo_id else f'user/{repo_id}'}"
        answer: Any = None
        if name in ("create_repo", "move_repo", "duplicate_repo"):
            answer = module.RepoUrl(address)
        elif name.startswith(("create_commit", "upload_f", "delete_f")):
            answer = module.CommitInfo(
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

    method.__name__ = name
    return method


WITHHELD_BY_AWS = {
    "ResponseMetadata": {"HTTPStatusCode": 200},
    "ETag": '""',
    "UploadId": "withheld",
}


def botocore(report: Report, module: Any) -> list[StandIn]:
    """Every operation of every service of AWS passes here."""
    native = module.BaseClient._make_api_call

    def call(client: Any, operation_name: str, api_params: Any) -> Any:
        if operation_name.startswith(BUCKET_READING):
            token = passing.set(True)
            try:
                return native(client, operation_name, api_params)
            finally:
                passing.reset(token)
        report(EffectKind.WITHHELD, f"AWS {operation_name}", sys._getframe(1))
        return dict(WITHHELD_BY_AWS)

    return [StandIn(module.BaseClient, "_make_api_call", call)]


def aiobotocore(report: Report, module: Any) -> list[StandIn]:
    """The same for who awaits it, as s3fs does."""
    native = module.AioBaseClient._make_api_call

    async def call(client: Any, operation_name: str, api_params: Any) -> Any:
        if operation_name.startswith(BUCKET_READING):
            token = passing.set(True)
            try:
                return await native(client, operation_name, api_params)
            finally:
                passing.reset(token)
        report(EffectKind.WITHHELD, f"AWS {operation_name}", sys._getframe(1))
        return dict(WITHHELD_BY_AWS)

    return [StandIn(module.AioBaseClient, "_make_api_call", call)]


def google_blob(report: Report, module: Any) -> list[StandIn]:
    names = ("upload_from_file", "upload_from_filename", "upload_from_string", "delete", "rewrite",
             "compose", "patch", "update", "make_public")  # fmt: skip
    return withheld_methods(report, module.Blob, names, "google.cloud.storage")


def google_files(report: Report, module: Any) -> list[StandIn]:
    """gcsfs tries again for half a minute where a request fails."""
    native = module.GCSFileSystem._request

    @wraps(native)
    async def request(files: Any, method: str, path: str, *args: Any, **options: Any) -> Any:
        if method.upper() in READING_METHODS:
            return await native(files, method, path, *args, **options)
        report(EffectKind.WITHHELD, f"gcsfs {method} {path[:60]}", sys._getframe(1))
        return 200, {"Location": "withheld"}, None, b"{}"

    return [StandIn(module.GCSFileSystem, "_request", request)]


def azure_blob(report: Report, module: Any) -> list[StandIn]:
    names = ("upload_blob", "upload_page", "append_block", "stage_block", "commit_block_list",
             "delete_blob", "delete_blobs", "start_copy_from_url", "create_container",
             "delete_container", "upload_blob_from_url")  # fmt: skip
    return [
        stand_in
        for name in ("BlobClient", "ContainerClient", "BlobServiceClient")
        for stand_in in withheld_methods(report, getattr(module, name), names, "azure.storage.blob")
    ]


def withheld_methods(
    report: Report, owner: Any, names: tuple[str, ...], shown: str
) -> list[StandIn]:
    def withheld(name: str) -> Callable[..., None]:
        def method(*args: Any, **options: Any) -> None:
            report(EffectKind.WITHHELD, f"{shown} {name}", sys._getframe(1))

        return method

    return [StandIn(owner, name, withheld(name)) for name in names if hasattr(owner, name)]
