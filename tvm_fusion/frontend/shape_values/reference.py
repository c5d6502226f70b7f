"""Run one ONNX node by onnx's reference implementation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def run_node(node: onnx.NodeProto, arrays: Sequence[np.ndarray], opset: int) -> list[np.ndarray]:
    """Run a node of ONNX's own domain by onnx's reference implementation.

    Parameters
    ----------
    arrays
        Its inputs that are not left out; one that is named twice, twice.
    opset
        Version of the standard operators.
    """
    from onnx.reference import ReferenceEvaluator  # whose import takes a while; few models need it

    numbers = iter(range(len(node.input)))
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    # Names of their own: the same value may be given twice, as what is moved and as where to.
    alone.input[:] = [f"input_{next(numbers)}" if name else "" for name in node.input]
    names = [name for name in alone.input if name]
    stored = [numpy_helper.from_array(a, n) for n, a in zip(names, arrays, strict=True)]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([alone], "constant", [], outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(model).run(None, {})
    return [np.asarray(result) for result in results]
