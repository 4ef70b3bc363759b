"""Every tool and resource, by the official client, over stdio and HTTP."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.agents.servers import (
    TIMEOUT_S,
    answer_of,
    command,
    contents,
    environment,
    mcp,
    project,
    with_client,
)
from tests.profiles.kineto_files import linear_step
from torchtally.agents.arguments import TOOLS
from torchtally.report.schema import json_schema

SCHEMAS = {
    "run": "brief", "diff": "table", "fit": "fit", "fix": "fixes", "plan": "answer",
    "summary": "model", "explain": "run", "gpus": "chips",
}  # fmt: skip


def test_all_tools_over_stdio(tmp_path: Path) -> None:
    root = project(tmp_path)
    linear_step().write(root / "trace.json.gz")
    before = contents(tmp_path, root / ".tally")
    answers: dict[str, dict[str, Any]] = {}
    told: list[str] = []

    async def progress(elapsed_s: float, total: float | None, message: str | None) -> None:
        told.append(str(message))

    async def use(client: Any) -> None:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == set(TOOLS) == set(SCHEMAS)

        async def call(name: str, **arguments: Any) -> dict[str, Any]:
            Draft202012Validator(listed[name].input_schema).validate(arguments)
            result = await client.call_tool(name, arguments, progress_callback=progress)
            answer = answer_of(result)
            Draft202012Validator(listed[name].output_schema).validate(answer)
            assert len(result.content[0].text) < 32_000
            answers[name] = answer
            return answer

        first = await call("run", script="train.py")
        assert (first["run"], first["exit_code"]) == ("1", 0)
        second = await call("run", script="train.py", arguments=["--batch", "128"])
        assert second["answer"]["since_last"]["changed_lines"] > 0
        assert second["answer"]["since_last"]["bytes_change"] >= 0
        await call("diff", before="1", after="2", by="line", top=3)
        await call("plan", model="llama-3-8b", gpus="8xH100-SXM", options={"micro-batch": 1})
        await call("summary", model="net.py:Net", inputs=["2x4"])
        await call("fit", script="train.py", vary="--batch {}", largest=4)
        await call("fix", script="train.py", goal="fit")
        await call("explain", file="trace.json.gz")
        gpus = await call("gpus")
        assert (gpus["is_whole"], "H100-SXM" in gpus["answer"]["chips"]) == (False, True)
        whole = await client.read_resource(gpus["resource"])
        assert '"schema": "chips/1"' in whole.contents[0].text
        one = await call("gpus", gpu="H100-SXM")
        assert one["answer"]["chips"][0]["name"] == "H100-SXM"

        uris = {str(each.uri) for each in (await client.list_resources()).resources}
        assert {"tally://runs/1/report", "tally://runs/2/text"} <= uris
        text = (await client.read_resource("tally://runs/2/text")).contents[0].text
        assert text.startswith("fits H100-SXM")
        view = (await client.read_resource("tally://runs/2/by/line")).contents[0].text
        assert "train.py" in view
        assert len((await client.list_resource_templates()).resource_templates) == 1

    with_client(root, use)
    for name, answer in answers.items():
        kind = answer["answer"]["schema"].partition("/")[0]
        assert kind == SCHEMAS[name]
        if answer["is_whole"]:
            Draft202012Validator(json_schema(kind)).validate(answer["answer"])
    assert any(message.startswith("running for ") for message in told)
    assert contents(tmp_path, root / ".tally") == before
    assert not list((root / ".tally" / "mcp").iterdir())  # its folder went with it


@pytest.mark.thorough("test_all_tools_over_stdio")
def test_a_script_that_does_not_fit_says_what_would(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def use(client: Any) -> None:
        asked = {"script": "train.py", "arguments": ["--batch", "40000000"], "gpu": "RTX-4090"}
        answer = answer_of(await client.call_tool("run", asked))
        assert answer["exit_code"] == 1
        assert answer["answer"]["claim"] == "does not fit"
        assert "OutOfMemoryError" in answer["message"]

    with_client(root, use)


def test_over_http_on_loopback(tmp_path: Path) -> None:
    """At an address that stderr alone tells; another path of the same port has nothing."""
    root = project(tmp_path)
    words = [sys.executable, *command(root, "--http", "0")]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        match = re.fullmatch(r"tally: MCP at (http://127\.0\.0\.1:\d+)(/\S+/mcp)\n", line)
        assert match is not None, line

        async def session() -> None:
            async with asyncio.timeout(TIMEOUT_S), mcp.Client(match[1] + match[2]) as client:
                answer = answer_of(await client.call_tool("gpus", {"gpu": "T4"}))
                assert answer["answer"]["chips"][0]["name"] == "T4"
                answer = answer_of(await client.call_tool("run", {"script": "train.py"}))
                assert answer["answer"]["claim"] == "fits"
            with pytest.raises(Exception, match=r".*"):
                async with mcp.Client(f"{match[1]}/mcp"):
                    pass

        asyncio.run(session())
    finally:
        server.terminate()
        server.wait(30)


def test_calls_wait_for_each_other_and_too_many_are_refused(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def use(client: Any) -> None:
        calls = [client.call_tool("gpus", {"gpu": "T4"}) for _ in range(5)]
        results = await asyncio.gather(*calls)
        refused = [result for result in results if result.is_error]
        assert len(refused) == 2  # one ran and two waited
        assert "try again when some have ended" in refused[0].content[0].text

    with_client(root, use, "--jobs", "1", "--waiting", "2")


def test_a_call_that_takes_too_long_or_is_cancelled_ends(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def use(client: Any) -> None:
        answer = await client.call_tool("run", {"script": "slow.py"})
        assert answer.structured_content["exit_code"] == 124
        begun = asyncio.create_task(client.call_tool("run", {"script": "slow.py"}))
        await asyncio.sleep(2)
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun
        # The slot is free again.
        assert answer_of(await client.call_tool("gpus", {"gpu": "T4"}))

    with_client(root, use, "--max-seconds", "4")
