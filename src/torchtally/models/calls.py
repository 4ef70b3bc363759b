"""What a class of transformers or diffusers is called with: text, images, speech, noise.

Ids are zeros but for the places of images and speech, which a model looks for; pixels, sound and
noise have shapes and no values. Whatever the class computes of its own configuration (how many
tokens an image becomes) is asked of the class, on the meta device.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn

from torchtally import torch_private as private
from torchtally.errors import UsageError
from torchtally.models.diffusion import DENOISERS
from torchtally.models.inputs import InputSpec
from torchtally.models.samples import (
    AUDIO,
    IMAGES,
    OPTIONS,
    SEQUENCE,
    SOURCE,
    ModelCall,
    ModelSample,
)

USUAL_SEQUENCE = 1024
"""Tokens of text where none are given, or as many as a model takes."""
CHANNELS, IMAGE = 3, 224
LABELLED = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "ForMaskedLM")
"""Ends of classes of transformers whose labels are tokens like the input's."""
SAMPLE_RATE, FRAMES_PER_S = 16_000, 100
"""Of sound, and of its spectrogram: Whisper's window of 10 ms (arXiv 2212.04356, section 2.2)."""


class UnknownCallError(Exception):
    """Error of a class whose inputs are none of those that are made here."""


def call_of(model: nn.Module, sample: ModelSample) -> ModelCall:
    """How a model on the meta device is called with this. Raises UnknownCallError where nobody has
    said, and UsageError for a sample of what the model does not take.
    """
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    call = DENOISERS.get(name) or _by_type(config) or _by_parameters(model)
    if call is None:
        taken = ", ".join(_parameters(model))
        raise UnknownCallError(
            f"the inputs of {name} are unknown: it takes {taken[:300]}; give them to tally "
            "summary: --input NAME=SHAPE"
        )
    model_call = call(model, sample)
    given = {
        SEQUENCE: sample.sequence,
        SOURCE: sample.source,
        IMAGES: sample.images,
        AUDIO: sample.audio_s,
    }
    for word, value in given.items():
        if value is not None and word not in model_call.used:
            raise UsageError(f"{name} takes no {WORDS[word]}: leave {OPTIONS[word]} out.")
    return model_call


WORDS = {
    SEQUENCE: "sequence of tokens",
    SOURCE: "second sequence",
    IMAGES: "images",
    AUDIO: "sound",
}
MakeCall = Callable[[Any, ModelSample], ModelCall]


def _by_type(config: Any) -> MakeCall | None:
    return BY_TYPE.get(getattr(config, "model_type", ""))


def _by_parameters(model: nn.Module) -> MakeCall | None:
    """Call by what the class takes."""
    taken = _parameters(model)
    if "decoder_input_ids" in taken:
        return _speech_to_text if "input_features" in taken else _text_to_text
    if "pixel_values" in taken and "input_ids" in taken:
        if hasattr(model, "get_image_features"):
            return _pairs if "return_loss" in taken else _text_with_images
        return None
    if "pixel_values" in taken:
        return _images
    return _text if "input_ids" in taken else None


def _parameters(model: nn.Module) -> tuple[str, ...]:
    return tuple(signature(type(model).forward).parameters)[1:]


# Text ---------------------------------------------------------------------------------------------


def _text(model: Any, sample: ModelSample) -> ModelCall:
    length = sample.sequence or _usual_length(model.config.get_text_config())
    ids = _ids(sample.batch, length)
    return ModelCall(
        _with_labels(model, {"input_ids": ids}, ids),
        f"{length} tokens",
        length,
        frozenset({SEQUENCE}),
    )


def _text_to_text(model: Any, sample: ModelSample) -> ModelCall:
    usual = _usual_length(model.config)
    source, target = sample.source or usual, sample.sequence or usual
    inputs = {"input_ids": _ids(sample.batch, source)}
    return ModelCall(
        inputs | _target(model, sample.batch, target),
        f"{source} source tokens, {target} target tokens",
        target,
        frozenset({SEQUENCE, SOURCE}),
    )


def _speech_to_text(model: Any, sample: ModelSample) -> ModelCall:
    """Whisper: sound is filled up to its window of 30 s whatever its length."""
    config = model.config
    window, target = 2 * config.max_source_positions, sample.sequence or config.max_target_positions
    _check_audio(sample, window)
    shape = (sample.batch, config.num_mel_bins, window)
    return ModelCall(
        {"input_features": InputSpec(shape, None), **_target(model, sample.batch, target)},
        f"{window / FRAMES_PER_S:g} s of sound, {target} target tokens",
        target,
        frozenset({SEQUENCE, AUDIO}),
    )


def _target(model: Any, batch: int, length: int) -> dict[str, Any]:
    """What the decoder reads, and says: given both, for a class that shifts one to the other needs
    a first token, which not every configuration names.
    """
    ids = _ids(batch, length)
    return {"decoder_input_ids": ids} | ({"labels": ids} if _is_labelled(model) else {})


def _is_labelled(model: nn.Module) -> bool:
    return type(model).__name__.endswith(LABELLED)


def _with_labels(model: nn.Module, inputs: dict[str, Any], ids: torch.Tensor) -> dict[str, Any]:
    return inputs | ({"labels": ids} if _is_labelled(model) else {})


def _ids(batch: int, length: int, *special: tuple[int, int]) -> torch.Tensor:
    """Ids of (id, how many of it) first, and then of the smallest other one."""
    names = {name for name, _ in special}
    text = next(name for name in range(len(names) + 1) if name not in names)
    ids = torch.full((batch, length), text)
    start = 0
    for name, count in special:
        ids[:, start : start + count] = name
        start += count
    return ids


def _usual_length(config: Any) -> int:
    for key in ("max_position_embeddings", "n_positions"):
        if isinstance(longest := getattr(config, key, None), int) and longest > 0:
            # RoBERTa's positions begin behind the padding's (modeling_roberta.py,
            # create_position_ids_from_input_ids).
            kept = 2 if getattr(config, "type_vocab_size", 2) == 1 else 0
            return min(USUAL_SEQUENCE, longest - kept)
    return USUAL_SEQUENCE


# Images -------------------------------------------------------------------------------------------


def _images(model: Any, sample: ModelSample) -> ModelCall:
    count, size = sample.images or (1, _side(model.config))
    pixels = _pixels(model.config, sample.batch * count, size)
    words = f"an image of {size} x {size}" if count == 1 else f"{count} images of {size} x {size}"
    return ModelCall({"pixel_values": pixels}, words, 0, frozenset({IMAGES}))


def _pairs(model: Any, sample: ModelSample) -> ModelCall:
    """A text and an image of each sample, contrasted with all others."""
    vision = model.config.vision_config
    count, size = sample.images or (1, _side(vision))
    if count != 1:
        raise UsageError(f"{type(model).__name__} takes one image per sample: --images {size}.")
    length = sample.sequence or _usual_length(model.config.text_config)
    inputs = {
        "input_ids": _ids(sample.batch, length),
        "pixel_values": _pixels(vision, sample.batch, size),
        "return_loss": True,
    }
    words = f"{length} tokens, an image of {size} x {size}"
    return ModelCall(inputs, words, 0, frozenset({SEQUENCE, IMAGES}))


def _text_with_images(model: Any, sample: ModelSample) -> ModelCall:
    """Images are tokens among those of the text."""
    config = model.config
    vision = config.vision_config
    count, size = sample.images or (1, _side(vision))
    with torch.no_grad():
        shape = _pixels(vision, count, size).shape
        pixels = torch.empty(shape, dtype=model.dtype, device="meta")
        features = model.get_image_features(pixel_values=pixels)
    image_tokens = _rows(getattr(features, "pooler_output", features))
    pixels_of_batch = _pixels(vision, count * sample.batch, size)
    return _among_text(model, sample, image_tokens, {"pixel_values": pixels_of_batch})


def _rows(features: Any) -> int:
    """Tokens in features of images: all but the last of their sizes."""
    leaves = [each for each in private.tree_leaves(features) if isinstance(each, torch.Tensor)]
    return sum(each.numel() // each.shape[-1] for each in leaves)


def _among_text(
    model: Any, sample: ModelSample, others: int, inputs: dict[str, Any], word: str = "image"
) -> ModelCall:
    config = model.config
    length = sample.sequence or USUAL_SEQUENCE + others
    if length <= others:
        raise UsageError(
            f"--sequence {length} is too short: its {word}s take {others} tokens. Give a longer "
            f"one, or fewer or smaller {word}s."
        )
    keys = (f"{word}_token_id", f"{word}_token_index")
    token = next(value for key in keys if (value := getattr(config, key, None)) is not None)
    ids = _ids(sample.batch, length, (token, others))
    taken = _parameters(model)
    for kinds in ("token_type_ids", "mm_token_type_ids"):  # 1: of an image
        if kinds in taken:
            inputs[kinds] = (ids == token).long()
    words = f"{others} {word} tokens, {length - others} text tokens"
    used = frozenset({SEQUENCE, IMAGES if word == "image" else AUDIO})
    return ModelCall(_with_labels(model, {"input_ids": ids} | inputs, ids), words, length, used)


def _text_with_grids(model: Any, sample: ModelSample) -> ModelCall:
    """Qwen-VL: an image is a row of patches, and the grid says how they lie."""
    vision = model.config.vision_config
    unit = vision.patch_size * vision.spatial_merge_size
    count, size = sample.images or (1, unit * (448 // unit))
    if count > 1:  # images side by side are one in the class's table of positions
        raise UsageError(
            f"--images {count}x{size}: this model is counted with one image per sample."
        )
    if size % unit:
        raise UsageError(f"--images {count}x{size}: a side is a multiple of {unit} pixels here.")
    side = size // vision.patch_size
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", CHANNELS)
    width = channels * vision.temporal_patch_size * vision.patch_size**2
    total = count * sample.batch
    inputs: dict[str, Any] = {
        "pixel_values": InputSpec((total * side * side, width), None),
        "image_grid_thw": torch.tensor([[1, side, side]] * total),
    }
    return _among_text(model, sample, count * (side // vision.spatial_merge_size) ** 2, inputs)


def _text_with_sized_images(model: Any, sample: ModelSample) -> ModelCall:
    """Pixtral's tower: images have sizes of their own, of which patches are merged."""
    vision = model.config.vision_config
    unit = vision.patch_size * model.config.spatial_merge_size
    count, size = sample.images or (1, unit * (_side(vision) // unit))
    if size % unit:
        raise UsageError(f"--images {count}x{size}: a side is a multiple of {unit} pixels here.")
    total = count * sample.batch
    inputs: dict[str, Any] = {
        "pixel_values": _pixels(vision, total, size),
        "image_sizes": torch.tensor([[size, size]] * total),
    }
    return _among_text(model, sample, count * (size // unit) ** 2, inputs)


def _text_across_images(model: Any, sample: ModelSample) -> ModelCall:
    """Llama 3.2 Vision: text attends to images by layers of their own, tile by tile."""
    vision = model.config.vision_config
    count, size = sample.images or (1, vision.image_size)
    tiles_a_side = -(-size // vision.image_size)
    tiles, most = tiles_a_side**2, vision.max_num_tiles
    if tiles > most:
        raise UsageError(
            f"--images {count}x{size}: {tiles} tiles, but the model takes at most {most}."
        )
    length = sample.sequence or USUAL_SEQUENCE
    batch, side = sample.batch, vision.image_size
    ids = _ids(batch, length)
    present = torch.zeros(batch, count, most, dtype=torch.int64)
    present[..., :tiles] = 1
    shape = (batch, count, most, vision.num_channels, side, side)
    inputs = {
        "input_ids": ids,
        "pixel_values": InputSpec(shape, None),
        "aspect_ratio_ids": torch.ones(batch, count, dtype=torch.int64),
        "aspect_ratio_mask": present,
        "cross_attention_mask": present[:, None].repeat(1, length, 1, 1),
    }
    words = f"{count} x {most} tiles of {side} x {side} (padded), {length} text tokens"
    return ModelCall(_with_labels(model, inputs, ids), words, length, frozenset({SEQUENCE, IMAGES}))


def _side(config: Any) -> int:
    size = getattr(config, "image_size", None) or IMAGE
    return int(size if isinstance(size, int) else max(size))


def _pixels(config: Any, count: int, size: int) -> InputSpec:
    channels = getattr(config, "num_channels", None) or CHANNELS
    return InputSpec((count, channels, size, size), None)


# Sound --------------------------------------------------------------------------------------------


def _text_with_sound(model: Any, sample: ModelSample) -> ModelCall:
    """Qwen2-Audio: a spectrogram of 30 s, of which what is sound becomes tokens."""
    audio = model.config.audio_config
    window = 2 * audio.max_source_positions
    frames = _check_audio(sample, window)
    mask = torch.zeros(sample.batch, window, dtype=torch.int64)
    mask[:, :frames] = 1
    inputs: dict[str, Any] = {
        "input_features": InputSpec((sample.batch, audio.num_mel_bins, window), None),
        "feature_attention_mask": mask,
        "attention_mask": None,
    }
    # A convolution takes every other frame, and a pool the mean of two (modeling_qwen2_audio.py).
    tokens = (frames + 1) // 2 // 2
    call = _among_text(model, sample, tokens, inputs, "audio")
    ids = call.inputs["input_ids"]
    inputs = {**call.inputs, "attention_mask": torch.ones_like(ids)}
    return ModelCall(inputs, call.sample, call.tokens, call.used)


def _check_audio(sample: ModelSample, window: int) -> int:
    """Frames of the sound. Raises UsageError for more than a window's."""
    if sample.audio_s is None:
        return window
    frames = round(sample.audio_s * FRAMES_PER_S)
    if not 0 < frames <= window:
        raise UsageError(
            f"--audio {sample.audio_s:g}s: this model takes up to {window / FRAMES_PER_S:g} s."
        )
    return frames


BY_TYPE: Mapping[str, MakeCall] = {
    "qwen2_vl": _text_with_grids,
    "qwen2_5_vl": _text_with_grids,
    "qwen3_vl": _text_with_grids,
    "qwen3_vl_moe": _text_with_grids,
    "mistral3": _text_with_sized_images,
    "mllama": _text_across_images,
    "qwen2_audio": _text_with_sound,
}
"""By model_type, where what the class takes does not say how."""
