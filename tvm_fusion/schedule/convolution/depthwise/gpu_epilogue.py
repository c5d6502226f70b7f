"""Epilogue of a depthwise convolution on a GPU: results of a pixel, by vectors of channels.

for result:
  for what the result reads beside the sums:   vector of channels       16 bytes a load
  for lane:                                    out[lane] = result(acc[pixel][lane], vectors[lane])
  result vector = out                                                   16 bytes a store
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import DataType, ir, tirx

from ....core.expressions import load
from ....core.loops import block, index, local, sequence, substitute, unrolled, vectorized
from ...gpu.launch import VECTOR_BYTES
from ...index.address import same
from .gpu_view import DepthwiseView, vector_loads


def store_pixel(
    view: DepthwiseView,
    place: Mapping[ir.Var, ir.Expr],
    vector: ir.Expr,
    acc: ir.Var,
    pixel: int,
) -> tirx.Stmt:
    """Compute and store the results of a pixel.

    Parameters
    ----------
    view : DepthwiseView
        The convolution.
    place : mapping of Var to Expr
        The axes of pixels, at the first of the strip.
    vector : Expr
        The number of the vector of channels.
    acc : Var
        Sums, ``[pixels * lanes]``.
    pixel : int
        The pixel's number in the strip.
    """
    lanes, ones = view.lanes, {a.var: index(0) for a in view.contraction.stage.axes}
    here = {**ones, **place, view.x.var: place[view.x.var] + pixel}

    def at(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return {**here, view.k.var: vector * lanes + lane}

    stmts: list[tirx.Stmt] = []
    buffers: list[ir.Var] = []
    for result in view.contraction.results:
        held = []
        for read in vector_loads(view, result.value):
            register = local(f"{read.source.name}_vector", [lanes], str(read.ty.dtype))
            held.append((read, register))

            def fetch(lane: ir.Expr, read=read, register=register) -> tirx.Stmt:
                where = [substitute(i, at(lane)) for i in read.indices]
                return tirx.BufferStore(register, load(read.source, where), [lane])

            stmts.append(copy_vector(lanes, read.source, fetch))
        out = local(f"{result.buffer.name}_vector", [lanes], str(result.buffer.dtype))
        buffers += [*(register for _, register in held), out]

        def compute(lane: ir.Expr, result=result, held=held, out=out) -> tirx.Stmt:
            def swap(found: ir.TensorLoad) -> ir.Expr:
                register = next((r for known, r in held if same(found, known)), None)
                return found if register is None else load(register, [lane])

            total = load(acc, [pixel * lanes + lane])
            value = substitute(result.value, {}, swap) if held else result.value
            value = substitute(value, {**at(lane), view.contraction.total: total})
            return tirx.BufferStore(out, value, [lane])

        def store(lane: ir.Expr, result=result, out=out) -> tirx.Stmt:
            where = [substitute(i, at(lane)) for i in result.indices]
            return tirx.BufferStore(result.buffer, load(out, [lane]), where)

        stmts.append(unrolled("lane", lanes, compute))
        stmts.append(copy_vector(lanes, result.buffer, store))
    return block("pixel", sequence(stmts), buffers)


def copy_vector(lanes: int, buffer: ir.Var, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Copy a vector of channels of a buffer in accesses of at most 16 bytes."""
    at_once = min(lanes, VECTOR_BYTES // DataType(str(buffer.dtype)).itemsize)
    return unrolled(
        "access",
        lanes // at_once,
        lambda number: vectorized(at_once, lambda lane: body(number * at_once + lane)),
    )
