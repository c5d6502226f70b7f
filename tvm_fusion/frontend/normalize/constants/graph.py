"""Expressions of constants alone: a graph from what a module stores to what reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from ....core.constants.evaluate import evaluate_exactly, knows, operand_of
from ....core.constants.numpy_types import numpy_dtype, result_dtype, result_shape
from ....core.constants.weight_names import derived
from ....core.untouched import is_rewritable
from ...tensor_types import dtype_of
from ..engine import op_name


@dataclass(eq=False)
class Node:
    """A constant, or an operator whose operands are constants or such operators."""

    key: tuple  # equal for expressions of equal results
    nbytes: int  # of the result
    operator: str = ""
    # Tensors among the arguments, those in tuples too.
    operands: list[Node] = field(default_factory=list)
    readers: list[Node] = field(default_factory=list)  # whose operand it is
    # Names of other operators that read it, and ``""`` for outputs and whatever else does.
    read_by: set[str] = field(default_factory=set)
    const: GenericConst | None = None  # the constant; of an operator, None until it is evaluated
    call: relax.Call | None = None  # the operator


class ConstantGraph:
    """All expressions of constants in the functions that passes may rewrite.

    Parameters
    ----------
    unknown
        By hash, variables bound to operators that cannot be evaluated.

    Attributes
    ----------
    nodes : list of Node
        Constants, and operators behind their operands. Equal expressions are one.
    of : dict of int to Node
        By hash of the variable that an operator's result is bound to.
    """

    def __init__(self, mod: tvm.IRModule, unknown: Mapping[int, relax.Var]) -> None:
        self.nodes: list[Node] = []
        self.of: dict[int, Node] = {}
        self._unknown = unknown
        self._by_key: dict[tuple, Node] = {}
        for func in mod.functions.values():
            if is_rewritable(func):
                self._read(func.body)

    def evaluate(self, node: Node) -> bool:
        """Compute an operator whose operands are known; False if it cannot be."""
        call = node.call
        if call is None or any(operand.const is None for operand in node.operands):
            return False

        sources = [operand.const for operand in node.operands]

        def computed(consts: Sequence[Any]) -> Any:
            places = {hash(old): new for old, new in zip(sources, consts, strict=True)}

            def constant(arg: Any) -> Any:
                if isinstance(arg, relax.Tuple):
                    return [constant(leaf) for leaf in arg.fields]
                found = self._leaf(arg)
                const = arg if found is None else found.const
                return operand_of(places.get(hash(const), const))

            result = evaluate_exactly(call, [constant(arg) for arg in call.args])
            if result is None:
                return None
            array, dtype = result.astype(result_dtype(call), copy=False), dtype_of(call)
            # relax.const copies what it casts, even to the same type.
            data = tvm.runtime.tensor(array) if str(array.dtype) == dtype else array
            return relax.const(data, dtype)

        const = computed(sources)
        if const is None:
            return False
        node.const = derived(const, node.operator, sources, computed)
        return True

    def _read(self, body: Any) -> None:
        if not isinstance(body, relax.SeqExpr):
            self._read_outside(body, "")
            return
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    self._read_outside(value.cond, "")
                    self._read(value.true_branch)
                    self._read(value.false_branch)
                elif node := self._operator(value, binding.var):
                    self.of[hash(binding.var)] = node
                else:
                    self._read_outside(value, op_name(value))
        self._read_outside(body.body, "")

    def _read_outside(self, expr: Any, name: str) -> None:
        """Note which constants an expression reads that is none of them."""

        def visit(leaf: Any) -> None:
            node = self._leaf(leaf)
            if node is not None:
                node.read_by.add(name)

        relax.analysis.post_order_visit(expr, visit)

    def _leaf(self, expr: Any) -> Node | None:
        if isinstance(expr, GenericConst) and hasattr(
            expr.value, "shape"
        ):  # dtypes are constants, too
            key = ("constant", hash(expr))
            if key not in self._by_key:
                value = expr.value
                size = math.prod(map(int, value.shape)) * numpy_dtype(value.dtype).itemsize
                self._add(Node(key, size, const=expr))
            return self._by_key[key]
        return self.of.get(hash(expr)) if isinstance(expr, relax.Var) else None

    def _add(self, node: Node) -> Node:
        self._by_key[node.key] = node
        self.nodes.append(node)
        return node

    def _operator(self, value: Any, var: relax.Var) -> Node | None:
        name = op_name(value)
        is_kept = _widens_float8(value) or _widens_bytes(value)
        if not knows(name) or hash(var) in self._unknown or is_kept:
            return None
        shape = result_shape(value)
        if shape is None or 0 in shape:  # see ConcatEmpty
            return None
        operands: list[Node] = []
        parts: list[Any] = []
        for arg in value.args:
            leaves = arg.fields if isinstance(arg, relax.Tuple) else [arg]
            for leaf in leaves:
                node = self._leaf(leaf)
                if node is not None:
                    operands.append(node)
                elif not _is_known(leaf):
                    return None
                parts.append(str(leaf) if node is None else id(node))
            parts.append(len(leaves))
        key = (name, tuple(parts), str(value.attrs), str(value.ty))
        if key not in self._by_key:
            size = math.prod(shape) * result_dtype(value).itemsize
            made = self._add(Node(key, size, name.removeprefix("relax."), operands, call=value))
            for operand in operands:
                operand.readers.append(made)
        return self._by_key[key]


def _is_known(leaf: Any) -> bool:
    """Whether an argument that is no tensor has one value."""
    if isinstance(leaf, relax.ShapeExpr):
        return all(isinstance(extent, tirx.IntImm) for extent in leaf.values)
    return not isinstance(leaf, (relax.Var, relax.Call))


def _widens_float8(call: relax.Call) -> bool:
    """Whether a call casts a matrix of float8, which tensor cores multiply as it is."""
    if op_name(call) != "relax.astype":
        return False
    given = call.args[0]
    return dtype_of(given).startswith("float8") and given.ty.ndim > 1


def _widens_bytes(call: relax.Call) -> bool:
    """Whether a call makes floats of quantised weights, and not of a bias of 32 bits."""
    return op_name(call) == "relax.dequantize" and dtype_of(call.args[0]) != "int32"
