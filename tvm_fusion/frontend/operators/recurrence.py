"""Recurrent layers in Relax: one GEMM projects the inputs of all steps, one call_tir runs them."""

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax, s_tir, tirx

from ..._tvm.ir.buffer import scratch
from ...core.recurrent.buffers import RecurrentBuffers, declared
from ...core.recurrent.cell import ATTR, Recurrence
from ...core.tir.loops import block, index, loop, sequence
from ..tensor_types import dtype_of

# A recurrent layer as one PrimFunc of plain loops: what it means, for any template to replace.
#
# for direction, row:
#     h[0] = initial_h; c = initial_c
#     for step in sequence of the row:
#         for phase, unit: products, gates, new states      # h alternates between two buffers
#         outputs[time] = h                                 # zero behind the end of the row
#     last_h = h; last_c = c


def reference(layer: Recurrence, buffers: RecurrentBuffers) -> tirx.PrimFunc:
    """Write the PrimFunc of a layer over declared buffers, unscheduled."""
    writer = _Reference(layer, buffers)
    params = [buffers.buffers[name] for name in (*layer.operands, *layer.results)]
    regions = {name: _whole(buffers.buffers[name]) for name in (*layer.operands, *layer.results)}
    owner = s_tir.SBlock(
        [],
        [regions[name] for name in layer.operands],
        [regions[name] for name in layer.results],
        layer.cell,
        writer.body(),
        alloc_buffers=writer.scratch,
    )
    whole = block("root", s_tir.SBlockRealize([], True, owner))
    attrs = {"s_tir": True, "tirx.noalias": True, ATTR: layer.to_json()}
    return tirx.PrimFunc(params, whole).with_attrs(attrs)


def _whole(buffer: ir.Var) -> tirx.BufferRegion:
    ranges = [ir.Range.from_min_extent(index(0), index(extent)) for extent in buffer.shape]
    return tirx.BufferRegion(buffer, ranges)


class _Reference:
    """The loops."""

    def __init__(self, layer: Recurrence, buffers: RecurrentBuffers) -> None:
        self.layer, self.buffers = layer, buffers
        h = index(buffers.hidden)
        state = [index(layer.directions), buffers.batch, h]
        self.h = scratch([index(2), *state], buffers.dtype, "h")
        self.kept = {name: scratch(state, buffers.dtype, name) for name in layer.kept}
        self.sums = scratch([index(len(layer.gates) + 1)], buffers.dtype, "sums", scope="local")
        self.values = scratch([index(32)], buffers.dtype, "values", scope="local")
        self.scratch = [self.h, *self.kept.values(), self.sums, self.values]

    def body(self) -> tirx.Stmt:
        layer, buffers = self.layer, self.buffers

        def row(d: ir.Expr, b: ir.Expr) -> tirx.Stmt:
            steps = loop("step", buffers.steps, lambda s: self._step(s, d, b))
            return sequence([self._units(self._begin, d, b), steps, self._units(self._end, d, b)])

        return loop(
            "direction", layer.directions, lambda d: loop("row", buffers.batch, lambda b: row(d, b))
        )

    def _units(self, body, *at: ir.Expr) -> tirx.Stmt:
        return loop("unit", self.buffers.hidden, lambda u: sequence(body(*at, u)))

    def _begin(self, d: ir.Expr, b: ir.Expr, u: ir.Expr) -> list[tirx.Stmt]:
        start = self.buffers.initial("h", d, b, u)
        stmts = [tirx.BufferStore(self.h, start, [index(0), d, b, u])]
        if "c" in self.kept:
            start = self.buffers.initial("c", d, b, u)
            stmts.append(tirx.BufferStore(self.kept["c"], start, [d, b, u]))
        return stmts

    def _end(self, d: ir.Expr, b: ir.Expr, u: ir.Expr) -> list[tirx.Stmt]:
        parity = tirx.floormod(self.buffers.steps, index(2))
        h = tirx.BufferLoad(self.h, [parity, d, b, u])
        stmts = self.buffers.last("h", h, d, b, u)
        if "c" in self.kept:
            c = tirx.BufferLoad(self.kept["c"], [d, b, u])
            stmts += self.buffers.last("c", c, d, b, u)
        return stmts

    def _step(self, s: ir.Expr, d: ir.Expr, b: ir.Expr) -> tirx.Stmt:
        def phase(number: int) -> tirx.Stmt:
            return self._units(lambda u: [_Unit(self, number, s, d, b, u).stmt()])

        phases = sequence([phase(number) for number in range(len(self.layer.phases))])
        if "lengths" not in self.buffers.buffers:
            return phases

        def idle(u: ir.Expr) -> list[tirx.Stmt]:
            old = tirx.BufferLoad(self.h, [tirx.floormod(s, index(2)), d, b, u])
            kept = tirx.BufferStore(self.h, old, [tirx.floormod(s + 1, index(2)), d, b, u])
            zero = tirx.const(0, self.buffers.dtype)
            return [kept, *self.buffers.output(zero, s, d, b, u)]

        is_inside = s < self.buffers.length(b)
        return tirx.IfThenElse(is_inside, phases, self._units(idle))


class _Unit:
    """One unit of one row in one phase: :class:`...core.recurrent.cell.CellValues`."""

    def __init__(
        self, writer: _Reference, number: int, s: ir.Expr, d: ir.Expr, b: ir.Expr, u: ir.Expr
    ) -> None:
        self.writer, self.number = writer, number
        self.s, self.d, self.b, self.u = s, d, b, u
        self.time = writer.buffers.time(s, d, b)
        self.stmts: list[tirx.Stmt] = []
        self.count = 0

    def stmt(self) -> tirx.Stmt:
        writer, layer = self.writer, self.writer.layer
        gates, source = layer.phases[self.number]
        zero = tirx.const(0, writer.buffers.dtype)
        clear = [
            tirx.BufferStore(writer.sums, zero, [index(number)]) for number in range(len(gates))
        ]

        def add(k: ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    tirx.BufferStore(
                        writer.sums,
                        tirx.BufferLoad(writer.sums, [index(number)])
                        + writer.buffers.weight(gate, self.d, self.u, k) * self._state(source, k),
                        [index(number)],
                    )
                    for number, gate in enumerate(gates)
                ]
            )

        layer.phase(self.number, self.d, self)
        return sequence([*clear, loop("k", writer.buffers.hidden, add), *self.stmts])

    def _state(self, name: str, unit: ir.Expr) -> ir.Expr:
        at = [self.d, self.b, unit]
        if name == "h":
            return tirx.BufferLoad(self.writer.h, [tirx.floormod(self.s, index(2)), *at])
        return tirx.BufferLoad(self.writer.kept[name], at)

    def product(self, gate: str) -> ir.Expr:
        number = self.writer.layer.phases[self.number][0].index(gate)
        return tirx.BufferLoad(self.writer.sums, [index(number)])

    def projected(self, gate: str) -> ir.Expr:
        return self.writer.buffers.projected(gate, self.time, self.d, self.b, self.u)

    def old(self, name: str) -> ir.Expr:
        return self._state(name, self.u)

    def peephole(self, gate: str) -> ir.Expr:
        return self.writer.buffers.peephole(gate, self.d, self.u)

    def recurrent_bias(self) -> ir.Expr:
        return self.writer.buffers.bias(self.d, self.u)

    def assign(self, name: str, value: ir.Expr) -> ir.Expr:
        at = [index(self.count)]
        self.count += 1
        self.stmts.append(tirx.BufferStore(self.writer.values, value, at))
        return tirx.BufferLoad(self.writer.values, at)

    def put(self, name: str, value: ir.Expr) -> None:
        at = [self.d, self.b, self.u]
        if name != "h":
            self.stmts.append(tirx.BufferStore(self.writer.kept[name], value, at))
            return
        parity = tirx.floormod(self.s + 1, index(2))
        value = self.assign("h", value)
        self.stmts.append(tirx.BufferStore(self.writer.h, value, [parity, *at]))
        self.stmts += self.writer.buffers.output(value, self.time, self.d, self.b, self.u)


op = relax.op


def project(builder: Any, x: Any, weights: Any, bias: Any | None) -> Any:
    """Multiply the inputs of all steps by the weights of all directions and gates.

    Parameters
    ----------
    x : Expr
        Two axes of time and batch, and one of features.
    weights : Expr
        Directions, gates times units, features.
    """
    d, rows, features = (int(extent) for extent in weights.ty.shape)
    flat = builder.emit(op.reshape(weights, [d * rows, features]))
    projected = op.matmul(x, builder.emit(op.permute_dims(flat, [1, 0])))
    if bias is not None:
        projected = op.add(builder.emit(projected), builder.emit(op.reshape(bias, [d * rows])))
    return builder.emit(projected)


def run(builder: Any, layer: Recurrence, operands: Mapping[str, Any]) -> list[Any]:
    """Emit the recurrence.

    Parameters
    ----------
    operands : mapping of str to Expr
        By :attr:`Recurrence.operands`.

    Returns
    -------
    list of Var
        By :attr:`Recurrence.results`.
    """
    projected, weights = operands["projected"], operands["weights"]
    extents = dict(zip(layer.input_axes, projected.ty.shape, strict=False))
    hidden, dtype = int(weights.ty.shape[2]), dtype_of(projected)

    def own(axis: str) -> Any:
        extent = extents[axis]
        return extent if isinstance(extent, tirx.IntImm) else tirx.Var(axis, "int64")

    func = reference(layer, declared(layer, own("T"), own("B"), hidden, dtype))
    types = declared(layer, extents["T"], extents["B"], hidden, dtype)
    out = [relax.TensorType(list(types.buffers[n].shape), dtype) for n in layer.results]
    gvar = builder.add_func(func, layer.cell)
    call = op.call_tir(gvar, relax.Tuple([operands[n] for n in layer.operands]), out)
    result = builder.emit(call)
    return [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(out))]
