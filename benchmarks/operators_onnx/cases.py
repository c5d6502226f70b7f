"""The cases: models of one or a few operators with inputs and the outputs that ONNX expects."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
#: Of a case's name where all inputs but the first are initializers.
CONSTANTS = "+constants"


@dataclass(frozen=True)
class Case:
    """A model with what goes in and what must come out."""

    name: str  # kind and name in the onnx package; ``+constants`` where inputs became initializers
    model: onnx.ModelProto  # as shipped, or with initializers
    # Values in the order of the model's inputs and outputs.
    samples: list[tuple[list[Any], list[Any]]]
    # Tolerances of the onnx package.
    rtol: float
    atol: float

    @property
    def operator(self) -> str:
        """The operator under test, with its domain unless it is the standard one."""
        nodes = self.model.graph.node
        if not self.name.startswith("node/"):
            return self.name.partition("/")[0]
        found = next((n for n in nodes if n.op_type != "Constant"), None)
        if found is None:
            return "Constant"
        return (
            found.op_type if found.domain in ("", "ai.onnx") else f"{found.domain}.{found.op_type}"
        )


def cases() -> Iterator[Case]:
    """Yield all cases, each followed by its variant with initializers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test import loader

        for kind in KINDS:
            tests = loader.load_model_tests(kind=kind)
            for test in sorted(tests, key=lambda each: each.name):
                case = _exact(_case(kind, test))
                yield case
                constant = _with_constants(case)
                if constant is not None:
                    yield constant


def _case(kind: str, test: Any) -> Case:
    model = test.model
    samples = test.data_sets
    if model is None:
        model = onnx.load(Path(test.model_dir) / "model.onnx")
        samples = [_read(model, folder) for folder in sorted(Path(test.model_dir).glob("test_*"))]
    return Case(f"{kind}/{test.name.removeprefix('test_')}", model, samples, test.rtol, test.atol)


def _exact(case: Case) -> Case:
    """Compute what DFT should give in float64.

    With numpy 2 the package's own values are of an FFT in float32, whose rounding, where the exact
    value is zero, is above the tolerance.
    """
    if case.operator != "DFT":
        return case
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(case.model)
    names = [info.name for info in case.model.graph.input]
    samples = []
    for inputs, outputs in case.samples:
        wide = [np.asarray(x, "float64") if x.dtype.kind == "f" else x for x in inputs]
        found: Any = evaluator.run(None, dict(zip(names, wide, strict=True)))
        samples.append((inputs, [y.astype(x.dtype) for y, x in zip(found, outputs, strict=True)]))
    return replace(case, samples=samples)


def _read(model: onnx.ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    def values(infos: Any, kind: str) -> list[Any]:
        return [_value(folder / f"{kind}_{i}.pb", info) for i, info in enumerate(infos)]

    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in stored]
    return values(inputs, "input"), values(model.graph.output, "output")


def _value(path: Path, info: onnx.ValueInfoProto) -> Any:
    data = path.read_bytes()
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _with_constants(case: Case) -> Case | None:
    """Store the first sample's inputs, all but the first, in the model."""
    stored = {tensor.name for tensor in case.model.graph.initializer}
    infos = [info for info in case.model.graph.input if info.name not in stored]
    inputs, outputs = case.samples[0]
    if len(infos) < 2 or len(infos) != len(inputs):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info, value in list(zip(infos, inputs, strict=True))[1:]:
        if not info.type.HasField("tensor_type") or value is None:
            return None
        tensor = (
            value
            if isinstance(value, onnx.TensorProto)
            else numpy_helper.from_array(np.asarray(value), info.name)
        )
        tensor.name = info.name
        model.graph.initializer.append(tensor)
    kept = [info for info in model.graph.input if info.name not in {i.name for i in infos[1:]}]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return Case(case.name + CONSTANTS, model, [(inputs[:1], outputs)], case.rtol, case.atol)


def operators() -> dict[str, str]:
    """Map the name of every case to its operator; a function's body counts for the function."""
    found = {case.name: case.operator for case in cases()}
    return {
        name: found.get(re.sub(r"_expanded(_ver\d+)?(?=\+|$)", "", name), operator)
        for name, operator in found.items()
    }
