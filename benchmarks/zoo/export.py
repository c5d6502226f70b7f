"""Export the zoo's graphs without their weights: ``python -m benchmarks.zoo.export [NAME...]``.

Needs the extra ``zoo``; the committed graphs come from torch 2.13, transformers 5.23 and diffusers
0.42. Each model is exported twice, with different weights, which tells weights from constants.
"""

import argparse

import onnx
import torch

from benchmarks import zoo
from benchmarks.zoo import torch_models
from benchmarks.zoo.strip import strip

OPSET = 18


def export(name: str, seed: int = 0) -> onnx.ModelProto:
    """Export one model with torch's dynamo exporter, weights included.

    Parameters
    ----------
    name
        One of :data:`torch_models.NAMES`.

    Returns
    -------
    onnx.ModelProto
        The model as the exporter made it.
    """
    model = torch_models.build(name, seed)
    with torch.no_grad():
        program = torch.onnx.export(
            model.module,
            kwargs=model.inputs,
            output_names=[model.output],
            dynamic_shapes=model.dynamic_shapes,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )
    return program.model_proto


def main() -> None:
    """Export the named models, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.export", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(torch_models.NAMES))
    names = parser.parse_args().names or torch_models.NAMES
    if unknown := set(names) - set(torch_models.NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    for name in names:
        model = strip(export(name, seed=0), export(name, seed=1))
        zoo.store({name: model.SerializeToString(deterministic=True)})
        print(f"{name}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
