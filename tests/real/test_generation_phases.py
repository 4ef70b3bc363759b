"""Prefill, decode and caches of transformers' models, against closed forms and a training step.

B: sequences.  P: prompt.  NEW: tokens generated, of which the last is not looked up any more.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

import torchtally
from tests.plan.config_cases import CASES
from tests.plan.test_config import written
from tests.traces import traced
from torchtally.ledger import Ledger
from torchtally.ledger.steps import TokenGeneration
from torchtally.plan.architecture.config import read_config
from torchtally.plan.kv_cache import Cache, CacheKind, kv_cache_bytes
from torchtally.trace import Phase

pytestmark = pytest.mark.one_case_in(3)

B, P, NEW = 2, 12, 5
KEPT = P + NEW - 1
"""Tokens whose keys and values are held at the end."""
WINDOW = 8


@cache
def config(family: str) -> hf.PretrainedConfig:
    model_type, keys = CASES[family]
    return hf.CONFIG_MAPPING[model_type](**keys)


def network(family: str) -> nn.Module:
    model = hf.AutoModelForCausalLM.from_config(config(family), dtype=torch.bfloat16)
    return model.to("cuda").eval()  # type: ignore[no-any-return]


def accounted(script: Callable[[], None]) -> Ledger:
    ledger = torchtally.account(traced(script), roofline=torchtally.roofline("H100-SXM"))
    ledger.check()
    return ledger


@cache
def generated(family: str, **options: object) -> Ledger:
    def generate() -> None:
        prompt = torch.randint(3, 90, (B, P), device="cuda")
        settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **options}
        network(family).generate(prompt, **settings)  # type: ignore[operator]

    return accounted(generate)


def generation_of(ledger: Ledger) -> TokenGeneration:
    (generation,) = ledger.course.generations
    return generation


def planned_bytes(family: str, tokens: int, kind: CacheKind, folder: Path) -> int:
    model = read_config(written(folder, config(family)))
    return int(kv_cache_bytes(model, tokens, B, Cache(kind)).value)


@pytest.mark.thorough
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_a_beam_search_runs_to_its_end(early_stopping: object, tmp_path: Path) -> None:
    """Each of B prompts has three beams from the start; every beam keeps its keys and values."""
    ledger = generated("llama", num_beams=3, early_stopping=early_stopping)
    generation = generation_of(ledger)
    assert len(generation.decodes) == NEW - 1
    model = read_config(written(tmp_path, config("llama")))
    held = int(kv_cache_bytes(model, KEPT, 3 * B, Cache(CacheKind.DYNAMIC)).value)
    assert generation.passes[-1].cache_bytes == held


@pytest.mark.parametrize("family", ["gpt2", "llama", "deepseek_v3"])
def test_a_dynamic_cache_is_that_of_the_closed_form(family: str, tmp_path: Path) -> None:
    generation = generation_of(generated(family))
    assert [each.tokens for each in generation.prefills] == [P]
    assert len(generation.decodes) == NEW - 1
    held = generation.passes[-1].cache_bytes
    assert held == planned_bytes(family, KEPT, CacheKind.DYNAMIC, tmp_path)


@pytest.mark.thorough
def test_behind_a_window_a_token_more_is_allocated(tmp_path: Path) -> None:
    """The cache is a view of the last concatenation, which holds the token that just left, too."""
    held = generation_of(generated("mistral")).passes[-1].cache_bytes
    planned = planned_bytes("mistral", KEPT, CacheKind.DYNAMIC, tmp_path)
    assert held * (WINDOW - 1) == planned * WINDOW


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_a_static_cache_is_that_of_the_closed_form(family: str, tmp_path: Path) -> None:
    ledger = generated(family, cache_implementation="static", disable_compile=True)
    for each in generation_of(ledger).passes:
        assert each.cache_bytes == planned_bytes(family, KEPT, CacheKind.STATIC, tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_prefill_multiplies_as_the_forward_pass_of_training(family: str) -> None:
    """But for the head, which prefill asks for the last token alone."""
    ledger = generated(family)
    prefill = ledger.by_phase()[Phase.PREFILL].flops_matmul

    def train() -> None:
        model = network(family)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(3, 90, (B, P), device="cuda")
        model(input_ids=tokens).logits.sum().backward()
        optimizer.step()

    values = config(family)
    head = 2 * B * values.vocab_size * values.hidden_size
    forward = accounted(train).by_phase()[Phase.FORWARD].flops_matmul
    assert prefill == forward - (P - 1) * head


@pytest.mark.thorough(
    "virtual/compiling holds compiled functions, and the tests beside it generation"
)
def test_compiled_decoding_issues_less_than_half_as_many_operators() -> None:
    """Transformers compiles decoding with a static cache by itself; prefill stays as it is."""
    ledger = generated("llama", cache_implementation="static")
    generation = generation_of(ledger)
    assert [each.tokens for each in generation.prefills] == [P]
    assert len(generation.decodes) == NEW - 1
    prefill, decode = (
        sum(1 for entry in ledger.reported if each.first <= entry.op.clock < each.inner_end
            and entry.is_first)
        for each in (generation.passes[0], generation.passes[-1])
    )  # fmt: skip
    assert 2 * decode < prefill
    assert len({each.cache_bytes for each in generation.passes}) == 1
