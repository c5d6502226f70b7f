"""Reductions of types that TVM's operators do not know, and Hardmax."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .node import Node

op = relax.op


def hardmax(node: Node) -> Any:
    """Convert Hardmax since opset 13 by comparing class numbers with the first largest's."""
    shape = node.shape()
    axis = node.attribute("axis", -1) % len(shape)
    if node.opset < 13 or not isinstance(shape[axis], int):
        return None
    numbers = np.arange(shape[axis], dtype="int64")
    numbers = numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    largest = op.argmax(node.inputs[0], axis, keepdims=True)
    return op.astype(op.equal(relax.const(numbers, "int64"), largest), node.dtype())


def reduce_max(node: Node) -> Any:
    """Convert ReduceMax of booleans, which is "any"; other types are left to TVM."""
    return _of_booleans(node, op.max)


def reduce_min(node: Node) -> Any:
    """Convert ReduceMin of booleans, which is "all"; other types are left to TVM."""
    return _of_booleans(node, op.min)


def _of_booleans(node: Node, reduction: Any) -> Any:
    if node.dtype() != "bool":
        return None
    axes: Any = node.attribute("axes")
    if axes is None and node.has(1):
        axes = [int(axis) for axis in node.required_constant(1, "axes")]
    if not axes:
        if node.attribute("noop_with_empty_axes", 0):
            return node.inputs[0]
        axes = None
    numbers = op.astype(node.inputs[0], "uint8")
    return op.astype(reduction(numbers, axes, bool(node.attribute("keepdims", 1))), "bool")


def top_k(node: Node) -> Any:
    """Leave TopK to TVM, whose sort knows signed numbers and uint8 only."""
    if node.dtype() in ("uint16", "uint32", "uint64"):
        raise node.refused(f"of {node.dtype()}", "cast to int64 before it")
    return None
