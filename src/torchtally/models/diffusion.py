"""What the denoisers of diffusers are called with: a noisy latent, a time, and what it is made by.

A latent of a Stable Diffusion's, of a DiT's or Flux's autoencoder has an eighth of the image's
pixels on each side (vae_scale_factor of diffusers' pipelines).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchtally.errors import UsageError
from torchtally.models.inputs import InputSpec
from torchtally.models.samples import IMAGES, SOURCE, ModelCall, ModelSample

PIXELS_PER_LATENT = 8
CLIP_TOKENS, SD3_TOKENS, FLUX_TOKENS, PIXART_TOKENS = 77, 333, 512, 300
"""Of a prompt, as diffusers' pipelines fill it up: SD3's are 77 of CLIP and 256 of T5."""


def _side(model: Any, sample: ModelSample, packed: int = 1) -> int:
    """Side of the latent."""
    config = model.config
    if sample.images is None:
        size = config.get("sample_size") or 1024 // PIXELS_PER_LATENT
        return int(size if isinstance(size, int) else size[0])
    count, pixels = sample.images
    patch = packed * (config.get("patch_size") or 1)
    if count != 1 or pixels % (PIXELS_PER_LATENT * patch):
        raise UsageError(
            f"--images {count}x{pixels}: give one image, its side a multiple of "
            f"{PIXELS_PER_LATENT * patch} pixels."
        )
    return pixels // PIXELS_PER_LATENT


def _latent(model: Any, sample: ModelSample) -> InputSpec:
    side = _side(model, sample)
    return InputSpec((sample.batch, model.config["in_channels"], side, side), None)


def _times(sample: ModelSample) -> torch.Tensor:
    return torch.zeros(sample.batch, dtype=torch.int64)


def _call(inputs: Mapping[str, Any], latent: str, prompt: int = 0) -> ModelCall:
    words = f"a latent of {latent}" + (f", a prompt of {prompt} tokens" if prompt else "")
    return ModelCall(inputs, words, 0, frozenset({IMAGES, SOURCE} if prompt else {IMAGES}))


def _words(spec: InputSpec) -> str:
    return " x ".join(map(str, spec.shape[1:]))


def _unet(model: Any, sample: ModelSample) -> ModelCall:
    latent = _latent(model, sample)
    return _call({"sample": latent, "timestep": _times(sample)}, _words(latent))


def _conditioned_unet(model: Any, sample: ModelSample) -> ModelCall:
    config, latent = model.config, _latent(model, sample)
    prompt = sample.source or CLIP_TOKENS
    width = config["cross_attention_dim"]
    width = width if isinstance(width, int) else width[0]
    inputs: dict[str, Any] = {
        "sample": latent,
        "timestep": _times(sample),
        "encoder_hidden_states": InputSpec((sample.batch, prompt, width), None),
    }
    if config["addition_embed_type"] == "text_time":  # SDXL: six sizes, and the pooled prompt
        pooled = config["projection_class_embeddings_input_dim"]
        pooled -= 6 * config["addition_time_embed_dim"]
        inputs["added_cond_kwargs"] = {
            "text_embeds": InputSpec((sample.batch, pooled), None),
            "time_ids": InputSpec((sample.batch, 6), None),
        }
    return _call(inputs, _words(latent), prompt)


def _dit(model: Any, sample: ModelSample) -> ModelCall:
    latent = _latent(model, sample)
    inputs = {"hidden_states": latent, "timestep": _times(sample), "class_labels": _times(sample)}
    return _call(inputs, _words(latent))


def _pixart(model: Any, sample: ModelSample) -> ModelCall:
    latent, prompt = _latent(model, sample), sample.source or PIXART_TOKENS
    width = model.config["caption_channels"]
    sizes: dict[str, Any] = {"resolution": None, "aspect_ratio": None}
    if model.use_additional_conditions:
        sizes = {
            "resolution": InputSpec((sample.batch, 2), None),
            "aspect_ratio": InputSpec((sample.batch, 1), None),
        }
    inputs = {
        "hidden_states": latent,
        "timestep": _times(sample),
        "encoder_hidden_states": InputSpec((sample.batch, prompt, width), None),
        "added_cond_kwargs": sizes,
    }
    return _call(inputs, _words(latent), prompt)


def _sd3(model: Any, sample: ModelSample) -> ModelCall:
    latent, prompt, config = _latent(model, sample), sample.source or SD3_TOKENS, model.config
    width, pooled = config["joint_attention_dim"], config["pooled_projection_dim"]
    inputs = {
        "hidden_states": latent,
        "timestep": _times(sample),
        "encoder_hidden_states": InputSpec((sample.batch, prompt, width), None),
        "pooled_projections": InputSpec((sample.batch, pooled), None),
    }
    return _call(inputs, _words(latent), prompt)


def _flux(model: Any, sample: ModelSample) -> ModelCall:
    """Latents come packed: two by two of them are a token."""
    config, prompt = model.config, sample.source or FLUX_TOKENS
    side = _side(model, sample, packed=2) // 2
    tokens = side * side
    inputs = {
        "hidden_states": InputSpec((sample.batch, tokens, config["in_channels"]), None),
        "timestep": InputSpec((sample.batch,), None),
        "encoder_hidden_states": InputSpec(
            (sample.batch, prompt, config["joint_attention_dim"]), None
        ),
        "pooled_projections": InputSpec((sample.batch, config["pooled_projection_dim"]), None),
        "img_ids": InputSpec((tokens, 3), None),
        "txt_ids": InputSpec((prompt, 3), None),
    }
    if config["guidance_embeds"]:
        inputs["guidance"] = InputSpec((sample.batch,), torch.float32)
    return _call(inputs, f"{tokens} tokens", prompt)


def _autoencoder(model: Any, sample: ModelSample) -> ModelCall:
    count, side = sample.images or (1, int(model.config["sample_size"]))
    shape = (sample.batch * count, model.config["in_channels"], side, side)
    return ModelCall(
        {"sample": InputSpec(shape, None)}, f"an image of {side} x {side}", 0, frozenset({IMAGES})
    )


DENOISERS: Mapping[str, Callable[[Any, ModelSample], ModelCall]] = {
    "AutoencoderKL": _autoencoder,
    "DiTTransformer2DModel": _dit,
    "FluxTransformer2DModel": _flux,
    "PixArtTransformer2DModel": _pixart,
    "SD3Transformer2DModel": _sd3,
    "UNet2DConditionModel": _conditioned_unet,
    "UNet2DModel": _unet,
}
"""By their classes."""
