"""Represent complex tensors by two real ones: their real and imaginary parts.

Operators that move or add elements are converted once a part, by the converters of real tensors;
those that mix the parts have converters here. At the model's boundary a complex tensor is a real
one with a last axis of two, as ``torch.view_as_real`` gives it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from tvm import relax

from ..registry import Unsupported
from ..tensor_types import dtype_of
from .call import COMPLEX, Call

op = relax.op


@dataclass(frozen=True)
class Pair:
    """A complex tensor: two real ones of its shape."""

    real: Any
    imag: Any


#: Of each part alone; a real operand has an imaginary part of zero.
BY_PART = frozenset(
    (
        *("view", "reshape", "_unsafe_view", "view_copy", "squeeze", "unsqueeze", "expand"),
        *("broadcast_to", "permute", "transpose", "t", "cat", "concat", "stack", "split", "unbind"),
        *("split_with_sizes", "split_with_sizes_copy", "unsafe_split", "slice", "select", "flip"),
        *("select_copy", "slice_scatter", "select_scatter", "roll", "repeat", "tile", "diagonal"),
        *("constant_pad_nd", "diagonal_copy", "diagonal_scatter", "as_strided", "as_strided_copy"),
        *("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "alias_copy", "detach_copy"),
        *("positive", "copy", "_to_copy", "to", "index", "index_select", "gather", "take", "where"),
        *("embedding", "add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "tril", "triu"),
        *("full", "zeros", "new_zeros", "zeros_like", "ones_like", "full_like", "empty"),
        *("empty_like", "scalar_tensor", "fill", "index_put", "scatter_add", "index_add"),
        "convert_element_type",
    )
)
# Arguments that are values, of which a real one has no imaginary part.
_VALUES = frozenset(
    (
        *("self", "other", "tensors", "input", "src", "source", "value", "values"),
        *("fill_value", "s", "a"),
    )
)

CONVERTERS: dict[str, Callable[[Call], Any]] = {}


def register(*names: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Return a decorator that registers a converter of complex tensors."""

    def enter(convert: Callable[[Call], Any]) -> Callable[[Call], Any]:
        CONVERTERS.update({n if "." in n else f"{n}.default": convert for n in names})
        return convert

    return enter


def touches_complex(node: fx.Node) -> bool:
    """Say whether a node takes or gives complex tensors."""
    return any(is_complex(n) for n in (node, *node.all_input_nodes))


def is_complex(node: fx.Node) -> bool:
    """Say whether a node's value, or one of them, is a complex tensor."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and v.dtype in COMPLEX for v in values)


def refusal(key: str, node: fx.Node) -> Unsupported | None:
    """Say why an operator on complex tensors cannot be converted."""
    if key in CONVERTERS or (key.split(".")[0] in BY_PART and is_complex(node)):
        return None
    return Unsupported("on complex tensors", "keep real and imaginary parts as two tensors")


def pair_of(call: Call, value: Any, dtype: str) -> Pair:
    """Make a pair of a complex or real tensor, or of a number."""
    if isinstance(value, Pair):
        return Pair(call.cast(value.real, dtype), call.cast(value.imag, dtype))
    if isinstance(value, complex):
        return Pair(relax.const(value.real, dtype), relax.const(value.imag, dtype))
    real = call.as_tensor(value, dtype)
    return Pair(real, call.emit(op.zeros_like(real)) if real.ty.ndim else relax.const(0, dtype))


class ComplexPart(Call):
    """A call whose complex arguments and results are one part of them."""

    def __init__(self, node: fx.Node, importer: Any, is_imaginary: bool):
        super().__init__(node, importer)
        self._is_imaginary = is_imaginary

    def __getitem__(self, name: str) -> Any:
        """Return an argument's part."""
        raw = self.raw(name)
        value = self.importer._retrieve_args(raw)
        return fx.node.map_aggregate(value, lambda v: self._part(name, v))

    def _part(self, name: str, value: Any) -> Any:
        if isinstance(value, Pair):
            return value.imag if self._is_imaginary else value.real
        if isinstance(value, complex):
            return value.imag if self._is_imaginary else value.real
        if not self._is_imaginary or name not in _VALUES:
            return value
        if isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType):
            return (
                self.emit(op.zeros_like(value))
                if value.ty.ndim
                else relax.const(0, dtype_of(value))
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 0
        return value


def by_part(node: fx.Node, importer: Any, convert: Callable[[Call], Any]) -> Any:
    """Convert an operator for the real parts, then for the imaginary ones."""
    parts = [convert(ComplexPart(node, importer, is_imaginary)) for is_imaginary in (False, True)]
    if node.target.__name__.startswith("ones_like"):
        parts[1] = op.zeros_like(parts[1])
    if isinstance(node.meta["val"], list | tuple):
        count = len(node.meta["val"])
        return tuple(
            Pair(importer._variable(parts[0][i]), importer._variable(parts[1][i]))
            for i in range(count)
        )
    return Pair(*(importer._variable(part) for part in parts))


def joined(importer: Any, pair: Pair) -> Any:
    """Return a complex tensor as a real one with a last axis of two."""
    emit = importer.block_builder.emit
    return emit(op.stack([pair.real, pair.imag], axis=pair.real.ty.ndim))


def parted(importer: Any, tensor: Any) -> Pair:
    """Return the parts of a real tensor with a last axis of two."""
    emit, axis = importer.block_builder.emit, tensor.ty.ndim - 1
    return Pair(*(emit(op.take(tensor, relax.const(i, "int64"), axis)) for i in (0, 1)))
