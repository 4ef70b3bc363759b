"""Small configurations of what no closed form covers: encoders, towers, speech, diffusion."""

from typing import Any

Case = dict[str, Any]

TEXT: Case = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8, "pad_token_id": 1,
    "max_position_embeddings": 256,
}  # fmt: skip
VISION: Case = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
CLIP_TEXT = TEXT | {"projection_dim": 16, "max_position_embeddings": 16}
DECODER: Case = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
QWEN_VISION: Case = {
    "depth": 2, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
ROPE: Case = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
QWEN_TEXT = TEXT | {"rope_parameters": ROPE}
IMAGE_TOKEN = 60
UNET: Case = {
    "sample_size": 16, "in_channels": 4, "out_channels": 4, "layers_per_block": 1,
    "block_out_channels": [32, 64], "norm_num_groups": 8,
}  # fmt: skip


def transformers_case(model_type: str, architecture: str, **keys: Any) -> Case:
    return {"model_type": model_type, "architectures": [architecture], **keys}


def diffusers_case(class_name: str, **keys: Any) -> Case:
    return {"_class_name": class_name, **keys}


CASES: dict[str, Case] = {
    "bert": transformers_case("bert", "BertForMaskedLM", **TEXT),
    "roberta": transformers_case("roberta", "RobertaForMaskedLM", **TEXT, type_vocab_size=1),
    "modernbert": transformers_case(
        "modernbert", "ModernBertForMaskedLM", **TEXT, local_attention=1024
    ),
    "vit": transformers_case("vit", "ViTForImageClassification", **VISION),
    "dinov2": transformers_case("dinov2", "Dinov2Model", **VISION),
    "siglip": transformers_case(
        "siglip", "SiglipModel", vision_config=VISION, text_config=CLIP_TEXT
    ),
    "siglip-tower": transformers_case("siglip_vision_model", "SiglipVisionModel", **VISION),
    "clip": transformers_case("clip", "CLIPModel", vision_config=VISION, text_config=CLIP_TEXT),
    "clip-tower": transformers_case("clip_vision_model", "CLIPVisionModel", **VISION),
    "t5": transformers_case(
        "t5", "T5ForConditionalGeneration", vocab_size=64, d_model=32, d_kv=8, d_ff=48,
        num_layers=2, num_heads=4, is_encoder_decoder=True,
    ),
    "bart": transformers_case("bart", "BartForConditionalGeneration", **DECODER),
    "whisper": transformers_case(
        "whisper", "WhisperForConditionalGeneration", **DECODER, num_mel_bins=8,
        max_source_positions=50, max_target_positions=16,
    ),
    "llava": transformers_case(
        "llava", "LlavaForConditionalGeneration", image_token_index=IMAGE_TOKEN,
        vision_config=VISION | {"model_type": "clip_vision_model"},
        text_config=TEXT | {"model_type": "llama"},
    ),
    "gemma3": transformers_case(
        "gemma3", "Gemma3ForConditionalGeneration", image_token_index=IMAGE_TOKEN,
        mm_tokens_per_image=4, vision_config=VISION | {"model_type": "siglip_vision_model"},
        text_config=TEXT | {"model_type": "gemma3_text"},
    ),
    "mistral3": transformers_case(
        "mistral3", "Mistral3ForConditionalGeneration", image_token_index=IMAGE_TOKEN,
        vision_config=VISION | {"model_type": "pixtral", "head_dim": 8},
        text_config=TEXT | {"model_type": "mistral"},
    ),
    "qwen2_vl": transformers_case(
        "qwen2_vl", "Qwen2VLForConditionalGeneration", image_token_id=IMAGE_TOKEN,
        vision_config=QWEN_VISION | {"hidden_size": 32, "embed_dim": 32},
        text_config=QWEN_TEXT | {"model_type": "qwen2_vl_text"}, vision_start_token_id=59,
    ),
    "qwen2_5_vl": transformers_case(
        "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", image_token_id=IMAGE_TOKEN,
        vision_config=QWEN_VISION | {
            "out_hidden_size": 32, "intermediate_size": 48, "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        text_config=QWEN_TEXT | {"model_type": "qwen2_5_vl_text"}, vision_start_token_id=59,
    ),
    "qwen3_vl": transformers_case(
        "qwen3_vl", "Qwen3VLForConditionalGeneration", image_token_id=IMAGE_TOKEN,
        vision_config=QWEN_VISION | {
            "out_hidden_size": 32, "intermediate_size": 48, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        text_config=QWEN_TEXT | {"model_type": "qwen3_vl_text"}, vision_start_token_id=59,
    ),
    "mllama": transformers_case(
        "mllama", "MllamaForConditionalGeneration", image_token_index=IMAGE_TOKEN,
        vision_config=VISION | {
            "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4,
            "max_num_tiles": 2, "intermediate_layers_indices": [0], "vision_output_dim": 64,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        text_config=TEXT | {"model_type": "mllama_text_model", "cross_attention_layers": [1]},
    ),
    "qwen2_audio": transformers_case(
        "qwen2_audio", "Qwen2AudioForConditionalGeneration", audio_token_index=IMAGE_TOKEN,
        audio_config={
            "model_type": "qwen2_audio_encoder", "num_mel_bins": 8, "max_source_positions": 40,
            "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "d_model": 32,
        },
        text_config=TEXT | {"model_type": "qwen2"},
    ),
    "dit": diffusers_case(
        "DiTTransformer2DModel", num_attention_heads=4, attention_head_dim=8, in_channels=4,
        out_channels=8, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=8,
        num_embeds_ada_norm=10,
    ),
    "pixart": diffusers_case(
        "PixArtTransformer2DModel", num_attention_heads=4, attention_head_dim=8, in_channels=4,
        out_channels=8, num_layers=2, sample_size=8, patch_size=2, caption_channels=24,
        cross_attention_dim=32,
    ),
    "sd3": diffusers_case(
        "SD3Transformer2DModel", sample_size=16, patch_size=2, in_channels=4, num_layers=2,
        attention_head_dim=8, num_attention_heads=4, joint_attention_dim=24,
        caption_projection_dim=32, pooled_projection_dim=20, out_channels=4, pos_embed_max_size=16,
    ),
    "flux": diffusers_case(
        "FluxTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1,
        attention_head_dim=8, num_attention_heads=4, joint_attention_dim=24,
        pooled_projection_dim=20, axes_dims_rope=[2, 2, 4], guidance_embeds=True,
    ),
    "unet": diffusers_case(
        "UNet2DModel", **UNET, down_block_types=["DownBlock2D", "AttnDownBlock2D"],
        up_block_types=["AttnUpBlock2D", "UpBlock2D"], attention_head_dim=8,
    ),
    "sdxl": diffusers_case(
        "UNet2DConditionModel", **UNET, down_block_types=["DownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "UpBlock2D"], attention_head_dim=8,
        cross_attention_dim=24, addition_embed_type="text_time", addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=44,
    ),
    "autoencoder": diffusers_case(
        "AutoencoderKL", sample_size=16, in_channels=3, out_channels=3, latent_channels=4,
        block_out_channels=[32], down_block_types=["DownEncoderBlock2D"],
        up_block_types=["UpDecoderBlock2D"], norm_num_groups=8,
    ),
}  # fmt: skip
"""By family."""
