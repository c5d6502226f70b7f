"""LSTM, GRU and RNN."""

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ....core.recurrent.cell import ACTIVATIONS, Activation, Recurrence
from ...operators.recurrence import project, run
from ..node import Node
from ..registry import Unsupported, register

op = relax.op
# Gates in ONNX's order, and the activations by default.
_CELLS = {
    "LSTM": ("lstm", "iofc", ("Sigmoid", "Tanh", "Tanh")),
    "GRU": ("gru", "zrh", ("Sigmoid", "Tanh")),
    "RNN": ("rnn", "h", ("Tanh",)),
}
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_BY_LOWER = {name.lower(): name for name in ACTIVATIONS}
# Constants of activations that take them, by default; others take none from the lists.
_ALPHA = {"Affine": 1.0, "Elu": 1.0, "HardSigmoid": 0.2, "LeakyRelu": 0.01, "ScaledTanh": 1.0,
          "ThresholdedRelu": 1.0}  # fmt: skip
_BETA = {"Affine": 0.0, "HardSigmoid": 0.5, "ScaledTanh": 1.0}


@register("LSTM", "GRU", "RNN")
def recurrent(node: Node) -> Any:
    """Convert a recurrent layer: one GEMM for the inputs of all steps, one kernel for the steps.

    TVM's converter unrolls the steps.
    """
    cell, gates, default = _CELLS[node.op_type]
    x, weights, recurrent_weights = node.inputs[:3]
    direction = node.attribute("direction", "forward")
    if direction not in _REVERSE:
        raise Unsupported(f"of direction {direction}", f"use {' or '.join(_REVERSE)}")
    reverse = _REVERSE[direction]
    d, rows, hidden = node.static_shape(2)
    node.static_shape(1)
    if d != len(reverse) or rows != len(gates) * hidden:
        raise Unsupported(
            f"with recurrent weights of shape {[d, rows, hidden]}",
            f"give it {[len(reverse), len(gates) * hidden, hidden]}",
        )
    if node.attribute("hidden_size", hidden) != hidden:
        raise Unsupported(
            f"of {hidden} units by its weights and another number by its attribute",
            f"set hidden_size to {hidden}",
        )
    is_batch_first = bool(node.attribute("layout", 0))
    reset_after = cell == "gru" and bool(node.attribute("linear_before_reset", 0))
    operands: dict[str, Any] = {"weights": recurrent_weights}
    bias = None
    if node.has(3):
        bias, operands["bias"] = _biases(node, len(gates) * hidden, hidden, reset_after)
    operands["projected"] = project(node.builder, x, weights, bias)
    for name, place in (("initial_h", 5), ("initial_c", 6)):
        if (name == "initial_h" or cell == "lstm") and node.has(place):
            state = node.inputs[place]
            operands[name] = (
                node.emit(op.permute_dims(state, [1, 0, 2])) if is_batch_first else state
            )
    if cell == "lstm" and node.has(7):
        operands["peepholes"] = node.inputs[7]
    if node.has(4):
        operands["lengths"] = node.emit(node.cast(node.inputs[4], "int32"))
    order = ("bias", "initial_h", "initial_c", "peepholes", "lengths")
    layer = Recurrence(
        cell,
        gates,
        reverse,
        _activations(node, default, d),
        clip=node.attribute("clip"),
        input_forget=cell == "lstm" and bool(node.attribute("input_forget", 0)),
        reset_after=reset_after,
        input_axes="BT" if is_batch_first else "TB",
        output_axes="BTDH" if is_batch_first else "TDBH",
        optional=tuple(name for name in order if operands.get(name) is not None),
    )
    outputs, *last = run(node.builder, layer, operands)
    if is_batch_first:
        last = [node.emit(op.permute_dims(state, [1, 0, 2])) for state in last]
    return [outputs, *last]


def _biases(node: Node, rows: int, hidden: int, reset_after: bool) -> tuple[Any, Any | None]:
    """Add the biases of the input and of the recurrence, but for the one inside a reset gate."""

    def part(start: int, end: int) -> Any:
        return node.emit(op.strided_slice(node.inputs[3], [1], [start], [end]))

    if not reset_after:
        return node.emit(op.add(part(0, rows), part(rows, 2 * rows))), None
    outside = rows - hidden
    both = node.emit(op.add(part(0, outside), part(rows, rows + outside)))
    return node.emit(op.concat([both, part(outside, rows)], 1)), part(rows + outside, 2 * rows)


def _activations(
    node: Node, default: Sequence[str], directions: int
) -> tuple[tuple[Activation, ...], ...]:
    """Read the activations of each direction; constants go to those that take them, in order."""
    given = node.attribute("activations") or [*default] * directions
    names = [
        name.decode(errors="backslashreplace") if isinstance(name, bytes) else name
        for name in given
    ]
    unknown = [name for name in names if name.lower() not in _BY_LOWER]
    if unknown or len(names) != len(default) * directions:
        raise Unsupported(
            f"with activations {', '.join(names)}",
            f"give it {len(default) * directions} of {', '.join(sorted(ACTIVATIONS))}",
        )
    alphas = list(node.attribute("activation_alpha") or ())
    betas = list(node.attribute("activation_beta") or ())

    def constant(name: str, values: list[float], defaults: dict[str, float]) -> float:
        if name not in defaults:
            return 0.0
        return values.pop(0) if values else defaults[name]

    made = []
    for name in (_BY_LOWER[name.lower()] for name in names):
        alpha = constant(name, alphas, _ALPHA)
        made.append(Activation(name, alpha, constant(name, betas, _BETA)))
    count = len(default)
    return tuple(tuple(made[i * count : (i + 1) * count]) for i in range(directions))
