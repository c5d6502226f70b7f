"""Recurrent layers (LSTM, GRU, RNN): what a cell computes in one step, whatever runs it.

for step in sequence:
    for phase of the cell:            # GRU that multiplies by the reset gate first has two
        products[gate] = R[gate] @ (h or reset * h)
        gates = activation(projected[time, gate] + products[gate])
    h, c = ...

``projected`` is the input times its weights plus all biases, of all steps: a GEMM before the loop.
The reference PrimFunc of :mod:`...frontend.operators.recurrence` and all kernels are written over
:class:`CellValues`, so that a cell is described once, here.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tvm import ir, tirx

from ..tir.loops import index

ATTR = "tvm_fusion.recurrence"  # PrimFunc attribute: a Recurrence as JSON text

# Names are ONNX's. Softsign and the others without constants ignore alpha and beta.
_ACTIVATIONS: dict[str, Callable[[ir.Expr, Callable[[float], ir.Expr], float, float], ir.Expr]] = {
    "Affine": lambda x, c, a, b: c(a) * x + c(b),
    "Elu": lambda x, c, a, b: tirx.Select(x < c(0), c(a) * (tirx.exp(x) - c(1)), x),
    "HardSigmoid": lambda x, c, a, b: tirx.max(c(0), tirx.min(c(1), c(a) * x + c(b))),
    "LeakyRelu": lambda x, c, a, b: tirx.Select(x < c(0), c(a) * x, x),
    "Relu": lambda x, c, a, b: tirx.max(x, c(0)),
    "ScaledTanh": lambda x, c, a, b: c(a) * tirx.tanh(c(b) * x),
    "Sigmoid": lambda x, c, a, b: tirx.sigmoid(x),
    "Softplus": lambda x, c, a, b: (
        tirx.max(x, c(0)) + tirx.log(c(1) + tirx.exp(c(0) - tirx.abs(x)))
    ),
    "Softsign": lambda x, c, a, b: x / (c(1) + tirx.abs(x)),
    "Tanh": lambda x, c, a, b: tirx.tanh(x),
    "ThresholdedRelu": lambda x, c, a, b: tirx.Select(x > c(a), x, c(0)),
}
ACTIVATIONS = frozenset(_ACTIVATIONS)


@dataclass(frozen=True)
class Activation:
    """An activation function by ONNX's name, with its constants."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: ir.Expr) -> ir.Expr:
        """Apply it to an expression."""
        dtype = str(x.ty.dtype)
        return _ACTIVATIONS[self.name](x, lambda v: tirx.const(v, dtype), self.alpha, self.beta)


class CellValues(Protocol):
    """What the body of a phase reads and writes, of one unit of one row."""

    def product(self, gate: str) -> ir.Expr:
        """Return the recurrent product of a gate."""

    def projected(self, gate: str) -> ir.Expr:
        """Return the projected input of a gate, biases included."""

    def old(self, name: str) -> ir.Expr:
        """Return a state or a kept value: ``h``, ``c``, ``z``."""

    def peephole(self, gate: str) -> ir.Expr:
        """Return the peephole weight of a gate."""

    def recurrent_bias(self) -> ir.Expr:
        """Return the bias inside of the reset gate."""

    def assign(self, name: str, value: ir.Expr) -> ir.Expr:
        """Compute a value once, and return it."""

    def put(self, name: str, value: ir.Expr) -> None:
        """Store a new state or a value for later phases: ``h``, ``c``, ``z``, ``rh``."""


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer, without sizes and types."""

    cell: str  # ``lstm``, ``gru`` or ``rnn``
    gates: str  # order of the gates in the weights: of ``i o f c``, ``z r h``, or ``h``
    reverse: tuple[bool, ...]  # for each direction, whether it goes from the end
    activations: tuple[tuple[Activation, ...], ...]  # for each direction: f, g, h of ONNX
    clip: float | None = None  # bound of the arguments of activations
    input_forget: bool = False  # LSTM: whether the forget gate is one minus the input gate
    # GRU: whether the reset gate multiplies the product (ONNX: ``linear_before_reset``).
    reset_after: bool = False
    # Order of time and batch: ``TB`` or ``BT``; ``TDBH``, ``TBDH`` or ``BTDH``.
    input_axes: str = "TB"
    output_axes: str = "TDBH"
    # Which optional operands there are, of ``bias`` (D, H), ``initial_h``, ``initial_c`` (D, B, H),
    # ``peepholes`` (D, 3H: i, o, f) and ``lengths`` (B), in this order.
    optional: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write it as text; equal layers give equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def directions(self) -> int:
        """Directions: 1 or 2."""
        return len(self.reverse)

    @property
    def operands(self) -> tuple[str, ...]:
        """Operands in the order of parameters."""
        return ("projected", "weights", *self.optional)

    @property
    def results(self) -> tuple[str, ...]:
        """Results in the order of parameters: all outputs, and the last states."""
        return ("outputs", "last_h", "last_c") if self.cell == "lstm" else ("outputs", "last_h")

    @property
    def phases(self) -> tuple[tuple[str, str], ...]:
        """Gates whose products a phase needs, and what their weights are multiplied by."""
        if self.cell == "gru" and not self.reset_after:
            return (("zr", "h"), ("h", "rh"))
        return (({"lstm": "iofc", "gru": "zrh", "rnn": "h"}[self.cell], "h"),)

    @property
    def kept(self) -> tuple[str, ...]:
        """Buffers of a row besides ``h``: the cell state, values from one phase to the next."""
        if self.cell == "lstm":
            return ("c",)
        return ("z", "rh") if len(self.phases) == 2 else ()

    def phase(self, number: int, direction: ir.Expr, v: CellValues) -> None:
        """Write what a phase does behind its products."""
        body = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.cell]
        body(number, direction, v)

    def _lstm(self, _: int, direction: ir.Expr, v: CellValues) -> None:
        c = v.assign("before", v.old("c"))

        def argument(gate: str, cell: ir.Expr | None = None) -> ir.Expr:
            x = v.projected(gate) + v.product(gate)
            if cell is not None and "peepholes" in self.optional:
                x = x + v.peephole(gate) * cell
            return self._clipped(x)

        i = self._activated(0, direction, v, "i", argument("i", c))
        if self.input_forget:
            f = v.assign("f", tirx.const(1, str(i.ty.dtype)) - i)
        else:
            f = self._activated(0, direction, v, "f", argument("f", c))
        candidate = self._activated(1, direction, v, "g", argument("c"))
        cell = v.assign("cell", f * c + i * candidate)
        o = self._activated(0, direction, v, "o", argument("o", cell))
        squashed = self._activated(2, direction, v, "squashed", cell)
        v.put("c", cell)
        v.put("h", o * squashed)

    def _gru(self, number: int, direction: ir.Expr, v: CellValues) -> None:
        if number == 0:
            z, r = (
                self._activated(
                    0, direction, v, gate, self._clipped(v.projected(gate) + v.product(gate))
                )
                for gate in "zr"
            )
            if not self.reset_after:
                v.put("z", z)
                v.put("rh", r * v.old("h"))
                return
            product = v.product("h")
            if "bias" in self.optional:
                product = product + v.recurrent_bias()
            inside = v.projected("h") + r * product
        else:
            z, inside = v.old("z"), v.projected("h") + v.product("h")
        n = self._activated(1, direction, v, "n", self._clipped(inside))
        v.put("h", (tirx.const(1, str(z.ty.dtype)) - z) * n + z * v.old("h"))

    def _rnn(self, _: int, direction: ir.Expr, v: CellValues) -> None:
        x = self._clipped(v.projected("h") + v.product("h"))
        v.put("h", self._activated(0, direction, v, "n", x))

    def _activated(
        self, number: int, direction: ir.Expr, v: CellValues, name: str, argument: ir.Expr
    ) -> ir.Expr:
        """Apply an activation, which may differ between directions."""
        x = v.assign(f"{name}_in", argument)
        first, *others = (row[number] for row in self.activations)
        value = v.assign(name, first(x))
        if others and others[0] != first:
            other = v.assign(f"{name}_reverse", others[0](x))
            value = v.assign(
                f"{name}_either", tirx.Select(tirx.EQ(direction, index(0)), value, other)
            )
        return value

    def _clipped(self, x: ir.Expr) -> ir.Expr:
        if self.clip is None:
            return x
        bound = tirx.const(self.clip, str(x.ty.dtype))
        return tirx.max(tirx.min(x, bound), -bound)


def recurrence_of(func: tirx.PrimFunc | None) -> Recurrence | None:
    """Read the layer that a PrimFunc computes; None for any other PrimFunc."""
    text = func.attrs.get(ATTR) if func is not None and func.attrs else None
    if text is None:
        return None
    data: dict[str, Any] = json.loads(str(text))
    activations = tuple(tuple(Activation(**a) for a in row) for row in data["activations"])
    return Recurrence(
        **{
            **data,
            "activations": activations,
            "reverse": tuple(data["reverse"]),
            "optional": tuple(data["optional"]),
        }
    )
