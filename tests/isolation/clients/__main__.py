"""Try the clients themselves: how many requests each way makes alone, and under `tally run`."""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.isolation.server import Requests, counting_server

WAYS = Path(__file__).with_name("ways.py")
PACKAGES = (
    *("wandb", "mlflow-skinny", "comet_ml", "neptune", "clearml", "swanlab", "trackio"),
    *("sentry-sdk", "slack_sdk", "discord-webhook", "python-telegram-bot", "knockknock"),
    *("boto3", "s3fs", "google-cloud-storage", "gcsfs", "azure-storage-blob", "minio"),
    *("modelscope", "kaggle", "prometheus-client", "posthog", "requests", "httpx"),
    "opentelemetry-exporter-otlp-proto-http",
)
TIMEOUT_S = 600


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.isolation.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="WAY", help="ways to try (default: all)")
    parser.add_argument("--uv", default=shutil.which("uv") or "uv", metavar="FILE")
    parser.add_argument("--python", type=Path, help="one that has the clients, and tally")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tally-clients-") as name:
        folder = Path(name)
        python = arguments.python or environment(folder / "environment", arguments.uv)
        alone, _ = tried([python], arguments.names, folder)
        tally = [python, "-m", "torchtally", "run", "--gpu", "T4", "--steps", "all", "--quiet"]
        guarded, outcomes = tried(tally, arguments.names, folder)
    for way, outcome in outcomes.items():
        print(f"{way:24} {alone.get(way, 0):3} alone {guarded.get(way, 0):3} here  {outcome[:90]}")
    sent = sum(guarded.values())
    reach = sum(bool(alone.get(way)) for way in outcomes)
    print(f"{len(outcomes)} ways; alone {reach} reach the server; under tally {sent} requests do")
    return int(sent > 0 or not reach)


def environment(place: Path, uv: str) -> Path:
    """A Python with the clients; torch and tally are those of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    site = next((place / "lib").glob("python*")) / "site-packages"
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    site.joinpath("below.pth").write_text(below)
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *PACKAGES], check=True)
    return python


def tried(
    command: list[Path | str], names: list[str], folder: Path
) -> tuple[dict[str, int], dict[str, str]]:
    """Requests of each way that are no reads, and how it ended."""
    with counting_server() as (address, requests):
        variables = os.environ | {"SERVER": address, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, WAYS, *names], cwd=folder, env=variables, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return by_way(requests), {way: rest for way, _, rest in lines if ("GET", mark(way)) in requests}


def mark(way: str) -> str:
    return f"/mark/{way}"


def by_way(requests: Requests) -> dict[str, int]:
    """What arrives after a mark is the way's; a query of GraphQL that signs in is a read."""
    counts: dict[str, int] = {}
    way = ""
    for method, path in requests:
        if path.startswith(mark("")):
            way = path.removeprefix(mark(""))
        elif method not in ("GET", "HEAD", "OPTIONS") and path != "/graphql":
            counts[way] = counts.get(way, 0) + 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
