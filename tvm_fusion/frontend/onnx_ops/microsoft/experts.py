"""Mixtures of experts, whose weights are integers of few bits.

the k largest router logits of a row choose its experts; their softmax weighs them
h = activation(x W1[expert] + b1);  y = sum over the experts of weight * (h W2[expert] + b2)
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ....core.tir.ragged import grouped_matmul
from ...operators.packed_weights import Packing, RelaxOperators, dequantize, unpacked
from ...tensor_types import accumulation_dtype
from ..node import Node
from ..registry import Unsupported, register

op = relax.op
_ROUTER_WEIGHTS, _FC3, _ZEROS = 14, 8, 10  # inputs; zero points of the n-th product at _ZEROS + n


@register("com.microsoft::QMoE")
def quantized_experts(node: Node) -> Any:
    """Convert a mixture of experts; few rows take their experts' weights, which reads no others."""
    _check(node)
    *around, width = node.shape()
    groups, count = node.static_shape(2)[0], node.attribute("k", 1)
    emit, dtype = node.emit, node.dtype()
    x = emit(op.reshape(node.inputs[0], [-1, width]))
    weights, chosen = _routing(node, count)
    chosen = emit(op.reshape(chosen, [-1]))
    rows = chosen.ty.shape[0]
    is_few = all(isinstance(d, int) for d in around) and math.prod(around) * count <= groups
    order = None
    if is_few:
        number = emit(op.arange(0, rows, 1, "int64"))
    else:  # the rows of an expert lie together
        order = number = emit(op.argsort(chosen, dtype="int64"))
        chosen = emit(op.take(chosen, order, axis=0))
    row = emit(op.floor_divide(number, relax.const(count, "int64")))
    inner = emit(op.take(x, row, axis=0))
    for place in (1, 2):
        inner = _product(node, place, inner, chosen, is_few)
        inner = _activation(node, inner) if place == 1 else inner
    if order is not None:
        inner = emit(op.take(inner, emit(op.argsort(order, dtype="int64")), axis=0))
    each = emit(op.reshape(inner, [-1, count, width]))
    wide = accumulation_dtype(dtype)
    each = emit(op.multiply(emit(node.cast(each, wide)), emit(op.expand_dims(weights, -1))))
    total = emit(op.sum(each, axis=1))
    return op.reshape(emit(node.cast(total, dtype)), [*around, width])


def _check(node: Node) -> None:
    """Refuse what ONNX Runtime has for single providers."""
    kind = node.attribute("activation_type", "relu")
    if kind not in _ACTIVATIONS:
        raise Unsupported(f"of activation {kind}", f"use one of {', '.join(_ACTIVATIONS)}")
    if kind == "swiglu" and node.attribute("swiglu_fusion", 0) != 1:
        raise Unsupported("of a gate that is not interleaved", "export with swiglu_fusion=1")
    if node.attribute("swiglu_limit_after_activation", 0):
        raise Unsupported("of a limit behind the activation", "export without it")
    if node.attribute("quant_type", "int") not in ("int", ""):
        raise Unsupported(f"of type {node.attribute('quant_type')}", "quantize to integers")
    if node.attribute("weights_prepacked", 0) > 0:
        raise Unsupported("with weights packed for one GPU", "export without weights_prepacked")
    if node.attribute("use_sparse_mixer", 0):
        raise Unsupported("with a sparse mixer", "export without use_sparse_mixer")
    if node.has(_FC3):
        raise Unsupported("with a third product", "join it to the first with swiglu_fusion=1")


def _routing(node: Node, count: int) -> tuple[Any, Any]:
    """Return the weights and the numbers of the experts of each row, in float32 and int64."""
    emit = node.emit
    logits = emit(node.cast(node.inputs[1], "float32"))
    found = emit(op.topk(logits, count, axis=-1, ret_type="both", dtype="int64"))
    best, chosen = (emit(relax.TupleGetItem(found, i)) for i in range(2))
    if not node.has(_ROUTER_WEIGHTS):
        return emit(op.nn.softmax(best, -1)), chosen
    given = emit(node.cast(node.inputs[_ROUTER_WEIGHTS], "float32"))
    weights = emit(op.gather_elements(given, chosen, axis=1))
    if node.attribute("normalize_routing_weights", 0):
        total = emit(op.sum(weights, axis=-1, keepdims=True))
        weights = emit(op.divide(weights, total))
    return weights, chosen


def _product(node: Node, place: int, x: Any, chosen: Any, is_few: bool) -> Any:
    """Multiply each row by its expert's matrix, and add the expert's bias."""
    emit, dtype, first = node.emit, node.dtype(), 3 * place - 1
    groups, columns, _ = node.static_shape(first)
    terms = int(x.ty.shape[1])
    bits = node.attribute(f"fc{place}_expert_weight_bits", 0) or 0
    bits = bits if bits > 0 else node.attribute("expert_weight_bits", 4)
    size = node.attribute("block_size", 0)
    size = size if size > 0 else terms
    if bits not in (2, 4, 8) or terms % size:
        raise Unsupported(
            f"of {bits} bits in blocks of {size} of {terms} terms",
            "quantize to 2, 4 or 8 bits in blocks that divide the terms",
        )
    ops, blocks = RelaxOperators(emit), terms // size
    arrays = {
        "plane0": ops.reshape(node.inputs[first], [groups, columns, blocks, size * bits // 8]),
        "scales": ops.reshape(node.inputs[first + 1], [groups, columns, blocks]),
    }
    if node.has(_ZEROS + place):
        arrays["zeros"] = _zero_points(node, _ZEROS + place, bits, [groups, columns, blocks])
    if is_few:
        arrays = {name: emit(op.take(a, chosen, axis=0)) for name, a in arrays.items()}
        groups = int(chosen.ty.shape[0])
    flat = groups * columns
    arrays = {n: ops.reshape(a, [flat, *list(a.ty.shape)[2:]]) for n, a in arrays.items()}
    packing = Packing(flat, terms, size, (bits,), 1 << (bits - 1))
    matrices = ops.reshape(dequantize(packing, arrays, dtype, ops), [groups, columns, terms])
    turned = emit(op.permute_dims(matrices, [0, 2, 1]))
    if is_few:
        result = emit(op.squeeze(emit(op.matmul(emit(op.expand_dims(x, 1)), turned)), [1]))
    else:
        numbers = relax.const(np.arange(groups))
        before = op.less_equal(emit(op.expand_dims(chosen, 0)), emit(op.expand_dims(numbers, 1)))
        ends = emit(op.sum(emit(op.astype(emit(before), "int64")), axis=1))
        wide = accumulation_dtype(dtype)
        result = node.emit_te(
            grouped_matmul, x, turned, ends, wide, primfunc_name_hint="grouped_mm"
        )
        result = emit(node.cast(result, dtype))
    if not node.has(first + 2):
        return result
    return emit(op.add(result, emit(op.take(node.inputs[first + 2], chosen, axis=0))))


def _zero_points(node: Node, place: int, bits: int, shape: list[int]) -> Any:
    """Unpack zero points: of blocks along a row's, else along the rows."""
    ops, (groups, columns, blocks) = RelaxOperators(node.emit), shape
    count = blocks if len(node.static_shape(place)) == 3 else columns
    held = -(-count * bits // 8)
    lines = groups * columns * blocks // count
    zeros = ops.reshape(node.inputs[place], [lines, held])
    zeros = unpacked(zeros, bits, [lines, held * (8 // bits)], ops)
    zeros = zeros if held * (8 // bits) == count else ops.first_columns(zeros, count)
    return ops.reshape(zeros, shape)


def _activation(node: Node, x: Any) -> Any:
    kind = node.attribute("activation_type", "relu")
    return node.emit(_ACTIVATIONS[kind](node, x))


def _swiglu(node: Node, x: Any) -> Any:
    """Multiply gates, at even columns, by what lies at odd ones."""
    emit = node.emit
    pairs = emit(op.reshape(x, [-1, int(x.ty.shape[1]) // 2, 2]))
    gate, up = (
        emit(op.squeeze(emit(op.strided_slice(pairs, [2], [i], [i + 1])), [2])) for i in range(2)
    )
    limit = node.attribute("swiglu_limit")
    if limit is not None and math.isfinite(limit):
        gate = emit(op.minimum(gate, _number(gate, limit)))
        up = emit(op.clip(up, -limit, limit))
    alpha, beta = (node.attribute(f"activation_{n}", v) for n, v in (("alpha", 1.0), ("beta", 0.0)))
    opened = emit(op.sigmoid(emit(op.multiply(gate, _number(gate, alpha)))))
    opened = emit(op.multiply(gate, opened))
    return op.multiply(opened, emit(op.add(up, _number(up, beta))))


def _number(like: Any, value: float) -> Any:
    return relax.const(value, like.ty.dtype)


_ACTIVATIONS: dict[str, Callable[[Node, Any], Any]] = {
    "relu": lambda node, x: op.nn.relu(x),
    "gelu": lambda node, x: op.nn.gelu_tanh(x),
    "silu": lambda node, x: op.nn.silu(x),
    "identity": lambda node, x: x,
    "swiglu": _swiglu,
}
