"""`PYTORCH_CUDA_ALLOC_CONF`: what every option means, and what is said to one nobody knows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.memory.allocator import AllocatorSettings, CachingAllocator
from torchtally.memory.allocator.caching import round_in_power_of_two
from torchtally.memory.allocator.settings import IGNORED, OPTIONS, UNLIMITED

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def parsed(text: str) -> AllocatorSettings:
    return AllocatorSettings.parse(text)


def is_default(settings: AllocatorSettings) -> bool:
    """But for the text that was read."""
    return replace(settings, text="") == AllocatorSettings()


# Options ---------------------------------------------------------------------------------------


def test_the_defaults_are_torchs() -> None:
    settings = AllocatorSettings()
    assert (settings.max_split_bytes, settings.max_non_split_rounding_bytes) == (
        UNLIMITED,
        20 * MIB,
    )
    assert (settings.large_segment_bytes, settings.garbage_collection_threshold) == (20 * MIB, 0.0)
    assert (settings.is_expandable, settings.rounds_up) == (False, False)
    assert settings.per_process_memory_fraction is None
    assert is_default(settings)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max_split_size_mb:128", "max_split_bytes", 128 * MIB),
        ("max_split_size_mb:20", "max_split_bytes", 20 * MIB),
        ("max_split_size_mb:18446744073709551615", "max_split_bytes", UNLIMITED),
        ("max_non_split_rounding_mb:64", "max_non_split_rounding_bytes", 64 * MIB),
        ("large_segment_size_mb:11", "large_segment_bytes", 11 * MIB),
        ("garbage_collection_threshold:0.8", "garbage_collection_threshold", 0.8),
        ("garbage_collection_threshold:1e-2", "garbage_collection_threshold", 0.01),
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction", 0.5),
        ("per_process_memory_fraction:1", "per_process_memory_fraction", 1.0),
        ("expandable_segments:True", "is_expandable", True),
        ("expandable_segments:False", "is_expandable", False),
        ("roundup_power2_divisions:4", "roundup_power2_divisions", (4,) * 16),
    ],
)
def test_every_option_with_its_value(text: str, name: str, value: object) -> None:
    layout = parsed(text)
    assert getattr(layout, name) == value
    assert layout.text == text
    assert is_default(layout) is (value in (False, UNLIMITED))


@pytest.mark.parametrize("option", sorted(IGNORED))
def test_what_takes_no_device_memory_is_let_through(option: str) -> None:
    assert is_default(parsed(f"{option}:8"))


def test_options_follow_one_another_and_blanks_mean_nothing() -> None:
    text = " max_split_size_mb : 40 ,\n expandable_segments:True,, "
    text += "roundup_power2_divisions:[1: 2, >:4],"
    layout = parsed(text)
    assert (layout.max_split_bytes, layout.is_expandable) == (40 * MIB, True)
    assert layout.roundup_power2_divisions == (2, *(4,) * 15)
    assert layout.text == text
    assert is_default(parsed(""))
    assert is_default(parsed(" , "))


def test_the_last_word_on_an_option_stands() -> None:
    layout = parsed("max_split_size_mb:40,expandable_segments:True,max_split_size_mb:60")
    assert (layout.max_split_bytes, layout.is_expandable) == (60 * MIB, True)


# Where it is read ------------------------------------------------------------------------------


def test_the_new_variable_comes_before_the_old_one() -> None:
    old = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40"}
    new = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:60"}
    of = AllocatorSettings.of_environment
    assert is_default(of({}))
    assert of(old).max_split_bytes == 40 * MIB
    assert of(new).max_split_bytes == 60 * MIB
    assert of(old | new).max_split_bytes == 60 * MIB
    assert of(old | {"PYTORCH_ALLOC_CONF": ""}).max_split_bytes == 40 * MIB


# Mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("max_split_size_mb:19", "a whole number of MiB, 20 or more"),
        ("max_split_size_mb:lots", "a whole number of MiB, 20 or more"),
        ("max_split_size_mb:-40", "a whole number of MiB, 20 or more"),
        ("max_split_size_mb:20.5", "a whole number of MiB, 20 or more"),
        ("max_non_split_rounding_mb:10", "a whole number of MiB, 20 or more"),
        ("large_segment_size_mb:10", "a whole number of MiB, 11 or more"),
        ("garbage_collection_threshold:0", "a number between 0 and 1"),
        ("garbage_collection_threshold:1", "a number between 0 and 1"),
        ("garbage_collection_threshold:1.2", "a number between 0 and 1"),
        ("garbage_collection_threshold:nan", "a number between 0 and 1"),
        ("per_process_memory_fraction:1.5", "a number between 0 and 1"),
        ("per_process_memory_fraction:half", "a number between 0 and 1"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments:1", "True or False"),
        ("roundup_power2_divisions:3", "a power of two"),
        ("roundup_power2_divisions:0", "a power of two"),
        ("roundup_power2_divisions:[4]", "a list like [256:1,512:2,>:4]"),
    ],
)
def test_a_value_torch_refuses_is_refused(text: str, wanted: str) -> None:
    """Which option, which value, and what it may be."""
    with pytest.raises(UsageError) as refusal:
        parsed(f"expandable_segments:True,{text}")
    assert str(refusal.value) == f"PYTORCH_CUDA_ALLOC_CONF: {text} is not {wanted}."


@pytest.mark.parametrize(("text", "part"), [("[256:1,512:3]", 3), ("[300:2]", 300), ("[1:x]", "x")])
def test_in_a_list_the_wrong_number_is_named(text: str, part: object) -> None:
    with pytest.raises(UsageError) as refusal:
        parsed(f"roundup_power2_divisions:{text}")
    assert f"roundup_power2_divisions:{part} is not a power of two" in str(refusal.value)


def test_an_option_torch_does_not_know_is_refused_with_those_it_knows() -> None:
    with pytest.raises(UsageError) as refusal:
        parsed("foo:1,bar:2")
    first, second = str(refusal.value).split("\n")
    assert first == "PYTORCH_CUDA_ALLOC_CONF: unknown option 'foo'."
    for option in OPTIONS:
        assert option in second


@pytest.mark.parametrize("text", ["max_split_size_mb", "max_split_size_mb:", "max_split_size_mb=4"])
def test_an_option_without_a_value_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parsed(text)
    first, second = str(refusal.value).split("\n")
    assert first == f"PYTORCH_CUDA_ALLOC_CONF: expected name:value, got {text!r}."
    assert second.endswith("expandable_segments:True,max_split_size_mb:128")


# Rounding within powers of two -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1200, 4, 1280),  # the documentation's example: 1024, 1280, 1536, 1792
        (1024, 4, 1024),
        (1025, 4, 1280),
        (1281, 4, 1536),
        (1793, 4, 2048),
        (2047, 1, 2048),
        (5 * MIB, 2, 6 * MIB),
        (5 * MIB, 4, 5 * MIB),
        (5 * MIB + 1, 4, 6 * MIB),
        (5 * MIB + 1, 8, 5 * MIB + 512 * KIB),
    ],
)
def test_a_size_is_rounded_up_within_its_power_of_two(
    size: int, divisions: int, rounded: int
) -> None:
    assert round_in_power_of_two(size, divisions) == rounded


@given(size=st.integers(64, 1 << 40), log2=st.integers(0, 6))
def test_rounding_is_up_by_less_than_one_step_and_done_once(size: int, log2: int) -> None:
    rounded = round_in_power_of_two(size, 1 << log2)
    step = (1 << (size.bit_length() - 1)) >> log2
    assert size <= rounded < size + step
    assert round_in_power_of_two(rounded, 1 << log2) == rounded


def test_sizes_below_512_times_the_divisions_are_rounded_to_512() -> None:
    """`round_size` asks for more than kMinBlockSize * divisions: 1200 becomes 1536, not 1280."""
    allocator = CachingAllocator(parsed("roundup_power2_divisions:4"))
    sizes = (1, 511, 1200, 2048, 2049, 5 * MIB + 1)
    assert list(map(allocator.rounded_bytes, sizes)) == [
        *(512, 512, 1536, 2048),
        2048 + 512,
        6 * MIB,
    ]


def divisions_by_mib(text: str, *sizes_mib: int) -> list[int]:
    layout = parsed(f"roundup_power2_divisions:{text}")
    return [layout.divisions_at(size * MIB) for size in sizes_mib]


def test_a_list_has_divisions_for_each_power_of_two() -> None:
    """The documentation's example. What it says of sizes "under 256MB" holds up to 512:

    torch keeps one number for each power of two, and 256's is that of 256 up to 512.
    """
    text = "[256:1,512:2,1024:4,>:8]"
    assert divisions_by_mib(text, 1, 100, 255) == [1, 1, 1]
    assert divisions_by_mib(text, 256, 511, 512, 1023) == [1, 1, 2, 2]
    assert divisions_by_mib(text, 1024, 2047, 2048, 65536, 1 << 20) == [4, 4, 8, 8, 8]
    allocator = CachingAllocator(parsed(f"roundup_power2_divisions:{text}"))
    for size, rounded in ((300, 300), (600, 768), (1100, 1280), (2100, 2304)):
        assert allocator.rounded_bytes(size * MIB) == rounded * MIB


def test_lists_are_read_as_torchs_own_test_has_it() -> None:
    """c10/test/core/AllocatorConfig_test.cpp; a power of two that is left out has none."""
    text = "[64:8,128:2,256:4,512:2,1024:4,>:1]"
    sizes = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
    assert divisions_by_mib(text, *sizes) == [8, 8, 2, 4, 2, 4, 1, 1, 1]
    text = "[128:8,256:16,512:1,2048:8,>:2]"
    sizes = [64, 128, 256, 512, 1024, 2048, 4096]
    assert divisions_by_mib(text, *sizes) == [8, 8, 16, 1, 0, 8, 2]
    assert divisions_by_mib("4", 64, 256, 2048) == [4, 4, 4]


def test_without_divisions_a_large_size_is_rounded_to_512_alone() -> None:
    for text in ("", "roundup_power2_divisions:1", "roundup_power2_divisions:[1:0,>:1]"):
        assert CachingAllocator(parsed(text)).rounded_bytes(300 * MIB + 1) == 300 * MIB + 512
