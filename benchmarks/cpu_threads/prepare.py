"""Write one model of the zoo with its inputs and right results, and compile it, in a process."""

import json
import sys
from pathlib import Path
from typing import Any

SEED = 0
MODEL, INPUTS, RIGHT, ARTIFACT = "model.onnx", "inputs.npz", "right.npz", "artifact"


def main(folder: str, name: str) -> None:
    """Make what is not there yet; prints an object when it is done."""
    place = Path(folder, name)
    if not (place / ARTIFACT).exists():
        import onnx

        import tvm_fusion
        from benchmarks import zoo
        from benchmarks.harness import arrays
        from benchmarks.harness.engines import ONNX_REFERENCE, Job, resolve

        place.mkdir(parents=True, exist_ok=True)
        model = zoo.load(name, seed=SEED)
        # Weights aside: a protobuf file ends at 2 GB.
        options: dict[str, Any] = {"save_as_external_data": True, "location": "model.weights"}
        onnx.save_model(model, str(place / MODEL), **options)
        inputs = zoo.inputs(name, seed=SEED)
        arrays.save(place / INPUTS, inputs)
        right = resolve(ONNX_REFERENCE)(Job(name, place / MODEL, inputs, 1, SEED, place))
        arrays.save(place / RIGHT, dict(right.outputs(right.run())))
        tvm_fusion.compile(str(place / MODEL), target="cpu").export(place / ARTIFACT)
    print(json.dumps({"wrong": ""}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
