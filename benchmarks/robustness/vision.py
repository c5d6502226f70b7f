"""Models of images, alone and with text."""

from typing import Any

import torch
import transformers
from torch import Tensor

from .model import SIZES, Example, Spec, ids, masked, pixels, pretrained

_VIT = {"image_size": 32, "patch_size": 8, "num_labels": 7}
_WIDTHS = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "num_labels": 7}
_RESNET = {**_WIDTHS, "embedding_size": 16}
_STAGES = {**_WIDTHS, "num_hidden_layers": None}
_image = pixels(2, 3, 32, 32)
_odd = pixels(1, 3, 67, 61)


def _resnet_backbone() -> transformers.PreTrainedConfig:
    return transformers.ResNetConfig(**_RESNET, out_features=["stage2", "stage3", "stage4"])


def _swin() -> dict[str, Any]:
    return {
        "num_attention_heads": None,
        "num_hidden_layers": None,
        "hidden_size": None,
        **_VIT,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    }


def _pair() -> dict[str, Tensor]:
    return {**masked(), **_image()}


def _two(text: type[Any], vision: type[Any]) -> dict[str, Any]:
    common = {**SIZES, "projection_dim": 24}
    return {
        "text_config": text(**common).to_dict(),
        "vision_config": vision(**{**common, **_VIT}).to_dict(),
        "projection_dim": 24,
    }


def _clip() -> Example:
    sizes = _two(transformers.CLIPTextConfig, transformers.CLIPVisionConfig)
    return transformers.CLIPModel(transformers.CLIPConfig(**sizes)), _pair()


def _siglip() -> Example:
    sizes = _two(transformers.SiglipTextConfig, transformers.SiglipVisionConfig)
    return transformers.SiglipModel(transformers.SiglipConfig(**sizes)), _pair()


def _blip() -> Example:
    sizes = _two(transformers.BlipTextConfig, transformers.BlipVisionConfig)
    config = transformers.BlipConfig(**sizes, image_text_hidden_size=24)
    config.text_config.encoder_hidden_size = 48
    model = transformers.BlipForConditionalGeneration(config)
    return model, {**_image(), "input_ids": ids(2, 7)}


def _detr() -> Example:
    config = transformers.DetrConfig(
        backbone_config=_resnet_backbone(),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=5,
        num_labels=7,
    )
    return transformers.DetrForObjectDetection(config), pixels(1, 3, 67, 61)()


def _mask2former() -> Example:
    backbone = transformers.SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=16,
        window_size=4,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 4, 4],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=48,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=4,
        dim_feedforward=48,
        num_queries=5,
        num_labels=7,
    )
    return transformers.Mask2FormerModel(config), pixels(1, 3, 64, 64)()


def _sam() -> Example:
    vision = transformers.SamVisionConfig(
        hidden_size=32,
        output_channels=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=4,
        window_size=3,
        global_attn_indexes=[1],
        mlp_dim=48,
        num_pos_feats=8,
    )
    prompt = transformers.SamPromptEncoderConfig(
        hidden_size=16, image_size=32, patch_size=4, mask_input_channels=8
    )
    mask = transformers.SamMaskDecoderConfig(
        hidden_size=16, mlp_dim=32, num_attention_heads=4, iou_head_hidden_dim=16
    )
    config = transformers.SamConfig(
        vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=mask
    )
    points = {
        "input_points": 31 * torch.rand(1, 1, 2, 2),
        "input_labels": torch.ones(1, 1, 2).long(),
    }
    return transformers.SamModel(config), {**pixels(1, 3, 32, 32)(), **points}


def _llava() -> Example:
    sizes = _two(transformers.LlamaConfig, transformers.CLIPVisionConfig)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**sizes["vision_config"]),
        text_config=transformers.LlamaConfig(**sizes["text_config"]),
        image_token_index=98,
        vision_feature_layer=-1,
    )
    given = ids(1, 25, vocabulary=98)
    given[:, 2:18] = 98
    return transformers.LlavaForConditionalGeneration(config), {
        "input_ids": given,
        **pixels(1, 3, 32, 32)(),
    }


MODELS: dict[str, Spec] = {
    "vit": pretrained("ViTForImageClassification", _image, **_VIT),
    "deit": pretrained("DeiTForImageClassification", _image, **_VIT),
    "beit": pretrained(
        "BeitForImageClassification", _image, **_VIT, use_relative_position_bias=True
    ),
    "dinov2": pretrained("Dinov2ForImageClassification", _image, **_VIT),
    "swin": pretrained("SwinForImageClassification", _image, "logits", **_swin()),
    "swinv2": pretrained("Swinv2ForImageClassification", _image, "logits", **_swin()),
    "convnext": pretrained("ConvNextForImageClassification", _odd, **{**_STAGES, "num_stages": 4}),
    "convnextv2": pretrained(
        "ConvNextV2ForImageClassification", _odd, **{**_STAGES, "num_stages": 4}
    ),
    "resnet": pretrained("ResNetForImageClassification", _odd, **_RESNET),
    "mobilenet_v1": pretrained(
        "MobileNetV1ForImageClassification", _odd, depth_multiplier=0.25, num_labels=7
    ),
    "mobilenet_v2": pretrained(
        "MobileNetV2ForImageClassification", _odd, depth_multiplier=0.25, num_labels=7
    ),
    "mobilevit": pretrained(
        "MobileViTForImageClassification",
        pixels(1, 3, 64, 64),
        hidden_sizes=[24, 32, 40],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 40],
        mlp_ratio=1.0,
        num_labels=7,
    ),
    "segformer": pretrained(
        "SegformerForSemanticSegmentation",
        pixels(1, 3, 67, 61),
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=24,
        num_labels=7,
    ),
    "levit": pretrained(
        "LevitForImageClassification",
        pixels(1, 3, 64, 64),
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        num_labels=7,
    ),
    "poolformer": pretrained("PoolFormerForImageClassification", _odd, **_WIDTHS),
    "pvt_v2": pretrained(
        "PvtV2ForImageClassification",
        pixels(1, 3, 64, 64),
        **_WIDTHS,
        num_attention_heads=[1, 2, 2, 4],
        sr_ratios=[8, 4, 2, 1],
        mlp_ratios=[2, 2, 2, 2],
    ),
    "dpt": pretrained(
        "DPTForDepthEstimation",
        _image,
        **{**_VIT, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 24, 24],
        fusion_hidden_size=16,
        is_hybrid=False,
    ),
    "vit_mae encoder": pretrained("ViTMSNModel", _image, **_VIT),
    "detr": Spec(_detr, ("logits", "pred_boxes")),
    "yolos": pretrained(
        "YolosForObjectDetection",
        _image,
        "logits",
        "pred_boxes",
        **{**_VIT, "image_size": [32, 32]},
        num_detection_tokens=5,
    ),
    "mask2former": Spec(
        _mask2former, ("transformer_decoder_last_hidden_state", "pixel_decoder_last_hidden_state")
    ),
    "sam": Spec(_sam, ("iou_scores", "pred_masks")),
    "clip": Spec(_clip, ("logits_per_image", "text_embeds", "image_embeds")),
    "siglip": Spec(_siglip, ("logits_per_image", "text_embeds", "image_embeds")),
    "blip": Spec(_blip, ("logits",)),
    "llava": Spec(_llava, ("logits",)),
}
