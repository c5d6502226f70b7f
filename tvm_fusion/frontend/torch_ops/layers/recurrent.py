"""LSTM, GRU and RNN: one GEMM and one kernel for all steps of a layer."""

from typing import Any

from torch import fx
from tvm import relax

from ....core.recurrent.cell import Activation, Recurrence
from ...operators.recurrence import project, run
from ...registry import Unsupported
from ...tensor_types import dtype_of
from ..call import Call, bound
from ..registry import register

op = relax.op
_SIGMOID, _TANH = Activation("Sigmoid"), Activation("Tanh")
# Cell, torch's order of gates, activations.
_CELLS = {
    "lstm": ("lstm", "ifco", (_SIGMOID, _TANH, _TANH)),
    "gru": ("gru", "rzh", (_SIGMOID, _TANH)),
    "rnn_tanh": ("rnn", "h", (_TANH,)),
    "rnn_relu": ("rnn", "h", (Activation("Relu"),)),
}


def _has_projections(node: fx.Node) -> Unsupported | None:
    """Refuse states that are projected, which torch decomposes, step by step."""
    given = bound(node)
    layers = given["num_layers"] * (2 if given["bidirectional"] else 1)
    if len(given["params"]) == layers * (4 if given["has_biases"] else 2):
        return None
    return Unsupported("with projected states", "use proj_size=0")


@register(
    *("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"), refuses=_has_projections
)
def recurrent(call: Call) -> Any:
    """Convert a stack of recurrent layers, whose directions are joined."""
    cell, gates, activations = _CELLS[call.node.target.__name__.split(".")[0]]
    d = 2 if call["bidirectional"] else 1
    dropout = call["dropout"]
    if call["train"] and dropout:
        raise Unsupported("with dropout in training mode", "export the model in eval mode")
    x, axes = call.tensor("input"), "BT" if call["batch_first"] else "TB"
    given = [call["hx"]] if cell != "lstm" else list(call["hx"])
    states = dict(zip(("initial_h", "initial_c"), given, strict=False))
    params = list(call["params"])
    count = len(params) // (call["num_layers"] * d)
    call.raw("has_biases")
    layer = Recurrence(
        cell,
        gates,
        (False, True)[:d],
        (activations,) * d,
        reset_after=cell == "gru",
        input_axes=axes,
        output_axes=f"{axes}DH",
        optional=(*(("bias",) if cell == "gru" and count == 4 else ()), *states),
    )
    last: list[list[Any]] = []
    for number in range(call["num_layers"]):
        first = number * d
        weights = [params[(first + i) * count : (first + i + 1) * count] for i in range(d)]
        x, *ends = _layer(call, layer, x, weights, states, first)
        last.append(ends)
    shape = call.shape(call.out[0])
    joined = [
        ends[0] if len(ends) == 1 else call.emit(op.concat(list(ends), 0))
        for ends in zip(*last, strict=True)
    ]
    return call.emit(op.reshape(x, shape)), *joined


def _layer(
    call: Call, layer: Recurrence, x: Any, weights: list[list[Any]], states: dict[str, Any], at: int
) -> list[Any]:
    """Run one layer, in all its directions."""
    d = layer.directions

    def stacked(tensors: list[Any]) -> Any:
        wide = [call.emit(op.expand_dims(t, 0)) for t in tensors]
        return wide[0] if len(wide) == 1 else call.emit(op.concat(wide, 0))

    inputs, recurrent = (stacked([w[i] for w in weights]) for i in range(2))
    operands: dict[str, Any] = {"weights": recurrent}
    bias = None
    if len(weights[0]) == 4:
        of_input, of_state = (stacked([w[i] for w in weights]) for i in (2, 3))
        if "bias" in layer.optional:
            hidden = int(recurrent.ty.shape[2])
            operands["bias"] = call.emit(
                op.strided_slice(of_state, [1], [2 * hidden], [3 * hidden])
            )
            zeros = op.zeros([d, hidden], dtype_of(of_state))
            outside = call.emit(op.strided_slice(of_state, [1], [0], [2 * hidden]))
            of_state = call.emit(op.concat([outside, call.emit(zeros)], 1))
        bias = call.emit(op.add(of_input, of_state))
    operands["projected"] = project(call.importer.block_builder, x, inputs, bias)
    for name, state in states.items():
        operands[name] = state
        if int(state.ty.shape[0]) != d:
            operands[name] = call.emit(op.strided_slice(state, [0], [at], [at + d]))
    outputs, *last = run(call.importer.block_builder, layer, operands)
    # Two axes of time and batch, then what the next layer reads as features.
    shape = [*list(outputs.ty.shape)[:2], d * int(outputs.ty.shape[3])]
    return [call.emit(op.reshape(outputs, shape)), *last]
