"""Weights of GGUF files, of which llama.cpp's models are: they stay in the blocks that they are in.

    weights = gguf.read("model.Q4_K_M.gguf")      tensors by name: packed matrices, arrays
    gguf.load(model, "model.Q4_K_M.gguf")         into a model of transformers, before its export
    mod = gguf.bind(mod, {"up.weight": weights["blk.0.ffn_up.weight"]})    into a Relax module

``formats``          blocks of each type, taken apart into planes of bits, scales and minimums
``file``             the container, which the package gguf reads
``torch_operators``  parameters in PyTorch that compute a weight from its planes
``torch_model``      which tensor of the file is which parameter, and how the file has it
``relax_module``     parameters of Relax functions
"""

import importlib
from typing import TYPE_CHECKING, Any

from .file import GgufFile, read
from .formats import PackedWeight
from .relax_module import bind

if TYPE_CHECKING:
    from .torch_model import load

__all__ = ["GgufFile", "PackedWeight", "bind", "load", "read"]


def __getattr__(name: str) -> Any:
    if name == "load":  # needs PyTorch
        return importlib.import_module(".torch_model", __name__).load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
