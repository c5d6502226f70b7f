"""Compile one model, or write what its peer and its check need, in a process of its own."""

import json
import sys
from pathlib import Path
from typing import Any

from .worker import SEED

PEER = "openvino"
PREPARED = ("fp32", "bf16", PEER)  # what is made of a model


def main(folder: str, name: str, made: str) -> None:
    """Make what is not there yet; prints an object when it is done."""
    place = Path(folder, name, made)
    if not place.exists():
        import torch

        import tvm_fusion

        from .models import built

        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        module, inputs = built(name, SEED)
        if made == PEER:
            write_peer(module, inputs, place)
        else:
            program = torch.export.export(module, inputs)
            tvm_fusion.compile(program, target="cpu", precision=made).export(place)
    print(json.dumps({"wrong": ""}), flush=True)


def write_peer(module: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    """Write inputs, PyTorch's first output, and OpenVINO's model where it can be had."""
    import numpy as np
    import torch

    exact = module(*inputs)[0].double().numpy()
    place = folder.with_name("case.npz")
    place.parent.mkdir(parents=True, exist_ok=True)
    np.savez(place, exact=exact, **{str(i): x.numpy() for i, x in enumerate(inputs)})
    import openvino

    model = openvino.convert_model(torch.export.export(module, inputs))
    partial = folder.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    openvino.save_model(model, partial / "model.xml", compress_to_fp16=False)
    partial.rename(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
