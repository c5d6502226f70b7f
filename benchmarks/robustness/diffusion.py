"""Parts of diffusion pipelines."""

from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from .model import Example, Spec

_BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


def _latent(channels: int = 4) -> dict[str, Tensor]:
    return {"sample": torch.randn(1, channels, 16, 16), "timestep": torch.tensor([10])}


def _unet2d() -> Example:
    module = diffusers.UNet2DModel(
        sample_size=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **_BLOCKS,
    )
    return module, _latent(3)


def _conditioned() -> dict[str, Any]:
    return {
        "sample_size": 16,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 24,
        "attention_head_dim": 4,
        **_BLOCKS,
    }


def _text() -> dict[str, Tensor]:
    return {"encoder_hidden_states": torch.randn(1, 7, 24)}


def _unet2d_condition() -> Example:
    return diffusers.UNet2DConditionModel(**_conditioned()), {**_latent(), **_text()}


def _controlnet() -> Example:
    sizes = {k: v for k, v in _conditioned().items() if k not in ("sample_size", "up_block_types")}
    module = diffusers.ControlNetModel(**sizes, conditioning_embedding_out_channels=(8, 16))
    return module, {**_latent(), **_text(), "controlnet_cond": torch.randn(1, 3, 32, 32)}


def _autoencoder_sizes() -> dict[str, Any]:
    return {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        **_BLOCKS,
    }


class _Both(nn.Module):
    """Encode to the mean of the latents and decode them."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, sample: Tensor) -> Tensor:
        """Return the image that comes out."""
        latent = self.module.encode(sample, return_dict=False)[0]
        latent = latent if isinstance(latent, Tensor) else latent.mode()
        return self.module.decode(latent, return_dict=False)[0]


def _picture() -> dict[str, Tensor]:
    return {"sample": torch.randn(1, 3, 32, 32)}


def _autoencoder_kl() -> Example:
    return _Both(diffusers.AutoencoderKL(**_autoencoder_sizes(), sample_size=32)), _picture()


def _autoencoder_tiny() -> Example:
    module = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    )
    return _Both(module), _picture()


def _vq() -> Example:
    module = diffusers.VQModel(**_autoencoder_sizes(), num_vq_embeddings=32, vq_embed_dim=3)
    return module, _picture()


def _dit() -> Example:
    module = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=8,
        norm_num_groups=8,
    )
    given = {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([10]),
        "class_labels": torch.tensor([3]),
    }
    return module, given


def _sd3() -> Example:
    module = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=24,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=16,
    )
    given = {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "encoder_hidden_states": torch.randn(1, 7, 24),
        "pooled_projections": torch.randn(1, 16),
        "timestep": torch.tensor([10]),
    }
    return module, given


def _flux() -> Example:
    module = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    given = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 7, 24),
        "pooled_projections": torch.randn(1, 16),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randint(4, (16, 3)).float(),
        "txt_ids": torch.zeros(7, 3),
    }
    return module, given


def _pixart() -> Example:
    module = diffusers.PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        cross_attention_dim=32,
        caption_channels=24,
        sample_size=8,
        use_additional_conditions=False,
    )
    given = {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([10]),
        "encoder_hidden_states": torch.randn(1, 7, 24),
    }
    return module, given


def _wan() -> Example:
    module = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=24,
        freq_dim=16,
        ffn_dim=48,
        num_layers=2,
        cross_attn_norm=True,
        rope_max_seq_len=32,
    )
    given = {
        "hidden_states": torch.randn(1, 4, 2, 8, 8),
        "timestep": torch.tensor([10]),
        "encoder_hidden_states": torch.randn(1, 7, 24),
    }
    return module, given


MODELS: dict[str, Spec] = {
    "UNet2DModel": Spec(_unet2d, ("sample",)),
    "UNet2DConditionModel": Spec(_unet2d_condition, ("sample",)),
    "ControlNetModel": Spec(_controlnet),
    "AutoencoderKL": Spec(_autoencoder_kl),
    "AutoencoderTiny": Spec(_autoencoder_tiny),
    "VQModel": Spec(_vq, ("sample",)),
    "DiTTransformer2DModel": Spec(_dit, ("sample",)),
    "PixArtTransformer2DModel": Spec(_pixart, ("sample",)),
    "SD3Transformer2DModel": Spec(_sd3, ("sample",)),
    "FluxTransformer2DModel": Spec(_flux, ("sample",)),
    "WanTransformer3DModel": Spec(_wan, ("sample",)),
}
