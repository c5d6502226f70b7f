"""Buffers of a recurrent layer: their shapes, and the addresses of elements."""

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import ir, tirx

from ..._tvm.ir.buffer import declare
from ..tir.loops import index
from .cell import Recurrence


@dataclass(frozen=True)
class RecurrentBuffers:
    """Buffers of a recurrent layer, with the addresses of its elements."""

    layer: Recurrence
    # By the names of :attr:`Recurrence.operands` and ``results``; results that nothing reads may be
    # absent.
    buffers: Mapping[str, ir.Var]

    @property
    def steps(self) -> ir.Expr:
        """Steps of the sequence."""
        return self.buffers["projected"].shape[self.layer.input_axes.index("T")]

    @property
    def batch(self) -> ir.Expr:
        """Rows."""
        return self.buffers["projected"].shape[self.layer.input_axes.index("B")]

    @property
    def hidden(self) -> int:
        """Units."""
        return int(self.buffers["weights"].shape[2])

    @property
    def dtype(self) -> str:
        """Type of the states and sums."""
        dtype = str(self.buffers["projected"].dtype)
        return dtype if dtype == "float64" else "float32"

    def time(self, step: ir.Expr, direction: ir.Expr, row: ir.Expr) -> ir.Expr:
        """Return a step's place in the sequence; a reversed one starts at its row's end."""
        if not any(self.layer.reverse):
            return step
        back = self.length(row) - 1 - step
        if all(self.layer.reverse):
            return back
        return tirx.Select(tirx.EQ(direction, index(1)), back, step)

    def length(self, row: ir.Expr) -> ir.Expr:
        """Return the steps of a row, which are at most those that there are."""
        if "lengths" not in self.buffers:
            return self.steps
        length = tirx.Cast("int64", tirx.BufferLoad(self.buffers["lengths"], [row]))
        return tirx.min(length, self.steps)

    def projected(self, gate: str, time: ir.Expr, direction: ir.Expr, row: ir.Expr, unit: ir.Expr):
        """Return an element of the projected input in the type of the sums."""
        order = [time, row] if self.layer.input_axes == "TB" else [row, time]
        gates = self.layer.gates
        column = (direction * len(gates) + gates.index(gate)) * self.hidden + unit
        return self._load("projected", [*order, column])

    def weight(self, gate: str, direction: ir.Expr, unit: ir.Expr, k: ir.Expr) -> ir.Expr:
        """Return an element of the recurrent weights in the type of the sums."""
        row = self.layer.gates.index(gate) * self.hidden + unit
        return self._load("weights", [direction, row, k])

    def peephole(self, gate: str, direction: ir.Expr, unit: ir.Expr) -> ir.Expr:
        """Return a peephole weight in the type of the sums."""
        return self._load("peepholes", [direction, "iof".index(gate) * self.hidden + unit])

    def bias(self, direction: ir.Expr, unit: ir.Expr) -> ir.Expr:
        """Return the bias inside of the reset gate in the type of the sums."""
        return self._load("bias", [direction, unit])

    def initial(self, state: str, direction: ir.Expr, row: ir.Expr, unit: ir.Expr) -> ir.Expr:
        """Return an initial state in the type of the sums; zero where it is left out."""
        name = f"initial_{state}"
        if name not in self.buffers:
            return tirx.const(0, self.dtype)
        return self._load(name, [direction, row, unit])

    def output(
        self, value: ir.Expr, time: ir.Expr, direction: ir.Expr, row: ir.Expr, unit: ir.Expr
    ) -> list[tirx.Stmt]:
        """Store an element of the outputs, if these are wanted."""
        by_axis = {"T": time, "D": direction, "B": row, "H": unit}
        return self._store("outputs", value, [by_axis[a] for a in self.layer.output_axes])

    def last(
        self, state: str, value: ir.Expr, direction: ir.Expr, row: ir.Expr, unit: ir.Expr
    ) -> list[tirx.Stmt]:
        """Store an element of a last state, if that is wanted; a row of no steps has 0.

        So it is in ONNX Runtime, whatever the initial state.
        """
        if "lengths" in self.buffers and f"initial_{state}" in self.buffers:
            zero = tirx.const(0, str(value.ty.dtype))
            value = tirx.Select(self.length(row) > 0, value, zero)
        return self._store(f"last_{state}", value, [direction, row, unit])

    def _load(self, name: str, at: list[ir.Expr]) -> ir.Expr:
        value = tirx.BufferLoad(self.buffers[name], at)
        return value if str(value.ty.dtype) == self.dtype else tirx.Cast(self.dtype, value)

    def _store(self, name: str, value: ir.Expr, at: list[ir.Expr]) -> list[tirx.Stmt]:
        buffer = self.buffers.get(name)
        if buffer is None:
            return []
        dtype = str(buffer.dtype)
        value = value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
        return [tirx.BufferStore(buffer, value, at)]


def declared(
    layer: Recurrence, steps: ir.Expr | int, batch: ir.Expr | int, hidden: int, dtype: str
) -> RecurrentBuffers:
    """Declare the buffers of a layer by its sizes."""
    d, h, gates = layer.directions, hidden, len(layer.gates)
    by_axis = {"T": index(steps), "B": index(batch), "D": index(d), "H": index(h)}
    state = [index(d), index(batch), index(h)]
    shapes = {
        "projected": [*(by_axis[a] for a in layer.input_axes), index(d * gates * h)],
        "weights": [index(d), index(gates * h), index(h)],
        "bias": [index(d), index(h)],
        "peepholes": [index(d), index(3 * h)],
        "lengths": [index(batch)],
        "outputs": [by_axis[a] for a in layer.output_axes],
    }
    buffers = {
        name: declare(shapes.get(name, state), "int32" if name == "lengths" else dtype, name)
        for name in (*layer.operands, *layer.results)
    }
    return RecurrentBuffers(layer, buffers)
