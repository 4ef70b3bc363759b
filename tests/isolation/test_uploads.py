"""A simulated run publishes nothing: no metrics, no checkpoints; it says what it has withheld."""

import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.run_tally import Run, tally_run
from torchtally.isolation.network import limited_network
from torchtally.isolation.passages import Gate, Passage, gated
from torchtally.trace import EffectKind

PACKAGES = {
    "wandb.py": """
def init(project=None, mode="online"):
    print("wandb", mode)
def login(): raise AssertionError("asks a server")
""",
    "trackio.py": """
def init(project, space_id=None, dataset_id=None):
    print("trackio", space_id, dataset_id)
""",
    "mlflow/tracking/_tracking_service/utils.py": """
import os
def _resolve_tracking_uri(uri): return uri or os.environ["MLFLOW_TRACKING_URI"]
""",
    "mlflow/tracking/_tracking_service/registry.py": """
from mlflow.tracking._tracking_service import utils
class TrackingStoreRegistry:
    def get_store(self, store_uri=None, artifact_uri=None):
        print("mlflow", utils._resolve_tracking_uri(store_uri))
""",
    "comet_ml.py": """
class Experiment:
    def __init__(self, api_key=None, disabled=False):
        print("comet", disabled)
""",
    "botocore/client.py": """
class BaseClient:
    def _make_api_call(self, operation_name, api_params):
        print("aws", operation_name)
        return {"Body": "downloaded"}
    def __getattr__(self, name):
        return lambda **options: self._make_api_call(name, options)
""",
    "google/cloud/storage/blob.py": """
class Blob:
    def upload_from_filename(self, name): print("google", name)
    def download_as_bytes(self): return b"downloaded"
""",
    "azure/storage/blob.py": """
class BlobClient:
    def upload_blob(self, data): print("azure", data)
    def download_blob(self): return b"downloaded"
class ContainerClient(BlobClient): pass
class BlobServiceClient: pass
""",
}
"""As those libraries are called; they print what reaches them."""

SCRIPT = """\
import os, socket, sys, time
time.sleep = lambda seconds: None  # where the hub is not reached, it is asked five times more
sys.path.insert(0, os.path.abspath("site-packages"))
def connect(*args): raise AssertionError(f"connects to {args}")
socket.socket.connect = connect

import wandb, trackio, comet_ml
from mlflow.tracking._tracking_service.registry import TrackingStoreRegistry
from wandb import init as start_run
wandb.login()
start_run("p", mode="online")
trackio.init("p", space_id="me/space")
os.environ["MLFLOW_TRACKING_URI"] = "https://example.org"
TrackingStoreRegistry().get_store()
TrackingStoreRegistry().get_store("file:runs")
comet_ml.Experiment(api_key="x")

from botocore.client import BaseClient
print(BaseClient().PutObject(Bucket="b")["ResponseMetadata"], BaseClient().GetObject()["Body"])
from google.cloud.storage.blob import Blob
Blob().upload_from_filename("x"), print(Blob().download_as_bytes())
from azure.storage.blob import BlobClient
BlobClient().upload_blob("x"), print(BlobClient().download_blob())

from huggingface_hub import HfApi, create_repo, upload_file
print(create_repo("me/model").repo_id)
print(upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="me/x", run_as_future=True)
      .result().oid == "0" * 40)
HfApi().delete_repo("me/model")
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1)
GPT2LMHeadModel(config).cuda().push_to_hub("me/tiny")
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("uploads")
    for name, source in PACKAGES.items():
        path = folder / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (folder / "train.py").write_text(SCRIPT)
    return tally_run("train.py", cwd=folder)


def test_only_downloads_and_local_files_get_through(published: Run):
    assert published.code == 0, published.stderr
    assert [line for line in published.stdout.splitlines() if line] == [
        "wandb disabled",
        "trackio None None",
        "mlflow mlruns",
        "mlflow file:runs",
        "comet True",
        "aws GetObject",
        "{'HTTPStatusCode': 200} downloaded",
        "b'downloaded'",
        "b'downloaded'",
        "me/model",
        "True",
    ]


def test_each_call_is_reported_with_its_line(published: Run):
    withheld = {
        (effect.name, effect.frame.line)
        for effect in published.trace.effects
        if effect.kind is EffectKind.WITHHELD and effect.frame is not None
    }
    lines = SCRIPT.splitlines()

    def line_of(text: str) -> int:
        return next(number for number, line in enumerate(lines, 1) if text in line)

    for name, text in {
        "wandb.login": "wandb.login()",
        "wandb.init": "start_run(",
        "trackio.init": "trackio.init(",
        "mlflow to https://example.org": "get_store()",
        "comet_ml.Experiment": "comet_ml.Experiment(",
        "AWS PutObject": "PutObject",
        "google.cloud.storage upload_from_filename": "upload_from_filename",
        "azure.storage.blob upload_blob": "upload_blob",
        "huggingface_hub create_repo": 'create_repo("me/model")',
        "huggingface_hub upload_file": "upload_file(path",
        "huggingface_hub delete_repo": "delete_repo(",
        "huggingface_hub create_commit": "push_to_hub",
    }.items():
        assert (name, line_of(text)) in withheld
    assert "Withheld, since a simulated run would publish placeholders:" in published.stderr


def test_variables_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://example.org")
    before = dict(os.environ)
    with limited_network("downloads", lambda *call: None):
        assert os.environ["WANDB_MODE"] == "disabled"
        assert "MLFLOW_TRACKING_URI" not in os.environ
    assert dict(os.environ) == before


def test_uploads_are_withheld_where_the_script_writes_for_real(tmp_path: Path):
    (tmp_path / "wandb.py").write_text(PACKAGES["wandb.py"])
    (tmp_path / "train.py").write_text("import wandb\nwandb.init('p', mode='online')\n")
    run = tally_run("--writes", "real", "train.py", cwd=tmp_path)
    assert run.stdout == "wandb disabled\n"


def test_a_constant_named_like_a_passage_stays() -> None:
    client = ModuleType("client")
    vars(client).update(upload_limit=5, upload_files=print)
    passage = Passage("client", "", "upload_.*", lambda call, *_, **__: None)
    replaced = gated(passage, Gate(lambda *_: None), client)
    assert [stand_in.name for stand_in in replaced] == ["upload_files"]
