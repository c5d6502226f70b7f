"""BERT with few and with many layers, as both importers bring it in."""

import statistics
from typing import Any

from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model

from .counting import operators, timed

LAYERS = (2, 4, 8, 12)
FRONTENDS = ("onnx", "torch")
LENGTH, VOCABULARY = 128, 30522


def program(layers: int) -> Any:
    """Export BERT-base with so many layers from transformers; needs the extra ``zoo``."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers)
    model = transformers.BertModel(config, add_pooling_layer=False).eval().requires_grad_(False)
    inputs = {
        "input_ids": torch.randint(VOCABULARY, (1, LENGTH)),
        "attention_mask": torch.ones(1, LENGTH, dtype=torch.int64),
    }
    return torch.export.export(model, (), inputs)


def as_onnx(exported: Any) -> Any:
    """Turn an exported program into ONNX, as the zoo's models were."""
    import torch

    return torch.onnx.export(exported, dynamo=True, opset_version=18, verbose=False).model_proto


def growth(layers: int, rounds: int) -> dict[str, Any]:
    """Time the rewriting stage on both imports.

    Returns
    -------
    dict
        By frontend ``operators``, as imported, and ``seconds`` of one core: the median of rounds.
    """
    exported = program(layers)
    found = {}
    for frontend in FRONTENDS:
        mod = import_model(as_onnx(exported) if frontend == "onnx" else exported).mod
        with parse("cpu").tvm_target():
            normal = Sequential([transform.NormalizeImport()])(mod)
            seconds = [timed(normal, FusionConfig())[0] for _ in range(rounds)]
        found[frontend] = {"operators": operators(mod), "seconds": statistics.median(seconds)}
    return found
