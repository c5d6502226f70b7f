"""All models by name, ready to be exported."""

from typing import Any

import torch
from torch import Tensor

from . import audio, decoders, diffusion, encoders, plain, seq2seq, vision
from .model import Parts, Spec, Tensors

FAMILIES: dict[str, dict[str, Spec]] = {
    "text encoders": encoders.MODELS,
    "text decoders": decoders.MODELS,
    "text to text": seq2seq.MODELS,
    "images": vision.MODELS,
    "sound and time series": audio.MODELS,
    "diffusion": diffusion.MODELS,
    "plain PyTorch": plain.MODELS,
}
NAMES = tuple(name for models in FAMILIES.values() for name in models)


def build(name: str, seed: int = 0) -> tuple[Tensors, tuple[Tensor, ...]]:
    """Build a model in evaluation mode with seeded weights, and its inputs, in float32.

    Parameters
    ----------
    name
        One of :data:`NAMES`.
    """
    spec = _spec(name)
    torch.manual_seed(seed)
    module, inputs = spec.build()
    module = Parts(module, spec.parts) if spec.parts else module
    _seed_vectors(module)
    module = Tensors(module.eval().requires_grad_(False), list(inputs))
    return module, tuple(inputs.values())


def exported(name: str) -> tuple[torch.export.ExportedProgram, tuple[Tensor, ...]]:
    """Export a model as its users would; returns the program and its inputs."""
    module, inputs = build(name)
    export = torch.export.draft_export if _spec(name).is_draft else torch.export.export
    return export(module, inputs), inputs


def _spec(name: str) -> Spec:
    return next(models[name] for models in FAMILIES.values() if name in models)


def _seed_vectors(module: Any) -> None:
    """Set biases, norms and matrices that start as zeros to seeded values."""
    for name, tensor in module.named_parameters():
        with torch.no_grad():
            if name.endswith("bias") or not tensor.count_nonzero():
                tensor.normal_(0.0, 0.1)
            elif tensor.ndim == 1 and bool((tensor == tensor[0]).all()):
                tensor.add_(0.1 * torch.randn_like(tensor))
