"""Transposed convolutions as plain ones over all phases of the output (sub-pixel convolution)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from ..core.decisions import Decision, record
from ..core.weight_names import derived
from ..frontend.normalize.engine import Scope, op_name, rewrite
from ..frontend.tensor_types import dtype_of, static
from .changes import Change, note


@dataclass(frozen=True)
class Phases:
    """One spatial dimension: ``y[s Y + q] = sum over t of x[Y - t] w[s t + q + p]``.

    A window over ``t`` from ``first`` on serves all phases q; where it leaves the weight, that is
    zero.

    Attributes
    ----------
    stride, padding, taps : int
        Of the transposed convolution: s, p, and extent of w.
    """

    stride: int
    padding: int
    taps: int

    @property
    def first(self) -> int:
        """The least t of any phase."""
        return -((self.stride - 1 + self.padding) // self.stride)

    @property
    def last(self) -> int:
        """The largest t of any phase."""
        return (self.taps - 1 - self.padding) // self.stride

    @property
    def window(self) -> int:
        """Extent of the window."""
        return self.last - self.first + 1

    def pads(self, extent: int, count: int) -> tuple[int, int]:
        """Give the padding before and behind an image for so many outputs of each phase."""
        return self.last, count - 1 + self.window - extent - self.last

    def tap(self, phase: int, place: int) -> int | None:
        """Give the element of w at a place in the window; ``None`` where it is zero."""
        number = self.stride * (self.last - place) + phase + self.padding
        return number if 0 <= number < self.taps else None


@tvm.transform.module_pass(opt_level=0, name="TransposedConvByPhases")
class TransposedConvByPhases:
    """``conv_transpose(x, W) = depth_to_space(conv(x, W'))``, with a constant W' of all phases.

    With strides of s the s * s elements of an output block depend on the same few pixels: they are
    channels of a convolution without strides, whose results are stored in the places of the block.
    Written with zeros between the pixels it takes s * s times as many products.

    On CPUs; without groups and dilation, of static images whose extents are multiples of strides.

    Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (2016).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function."""
        target = Target.current()
        return mod if target is None or target.kind.name != "llvm" else rewrite(mod, _phases)


def _phases(value: Any, scope: Scope) -> Any:
    if op_name(value) != "relax.nn.conv2d_transpose":
        return None
    found = _dimensions(value)
    if isinstance(found, str):
        return _refuse(scope, found)
    x, weight = value.args
    rows, columns = found
    made = _weight(weight, rows, columns)
    extents = [static(d) or 0 for d in x.ty.shape.values[2:]]
    results = [static(d) or 0 for d in value.ty.shape.values[2:]]
    counts = [n // d.stride for n, d in zip(results, found, strict=True)]
    pads = [d.pads(n, c) for n, c, d in zip(extents, counts, found, strict=True)]
    padding = (pads[0][0], pads[1][0], pads[0][1], pads[1][1])
    if min(padding) < 0:
        return _refuse(scope, "Its padding is wider than its window.")
    batch, channels = x.ty.shape.values[0], int(weight.ty.shape.values[1])
    sentence = (
        f"It is a convolution of {rows.stride * columns.stride} phases, without zero stuffing."
    )
    record(Decision(scope.target.name, "", "accepted", "transposed_conv", sentence))
    note(
        Change(
            "", "", ("transposed_phases",), "conv_transpose(x, W)", "depth_to_space(conv(x, W'))"
        )
    )
    conv = relax.op.nn.conv2d(x, made, padding=padding, out_dtype=value.attrs.out_dtype)
    if rows.stride == columns.stride == 1:
        return conv
    conv = scope.emit(conv)
    shape = [batch, rows.stride, columns.stride, channels, *counts]
    phases = scope.emit(relax.op.reshape(conv, relax.ShapeExpr(shape)))
    order = scope.emit(relax.op.permute_dims(phases, [0, 3, 4, 1, 5, 2]))
    return relax.op.reshape(order, relax.ShapeExpr([batch, channels, *results]))


def _refuse(scope: Scope, sentence: str) -> None:
    record(Decision(scope.target.name, "", "refused", "transposed_conv", sentence))


def _dimensions(conv: relax.Call) -> tuple[Phases, Phases] | str:
    """Read rows and columns of a transposed convolution, or say why it stays."""
    x, weight = conv.args
    attrs = conv.attrs
    if not isinstance(weight, GenericConst) or dtype_of(weight) != "float32":
        return "Its weight is no constant of float32."
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if layouts != ("NCHW", "IOHW", "NCHW") or x.ty.ndim != 4 or x.ty.shape is None:
        return "It is in another layout than NCHW."
    if int(attrs.groups) != 1 or any(int(d) != 1 for d in attrs.dilation):
        return "It has groups or is dilated."
    taps = [int(d) for d in weight.value.shape[2:]]
    strides, padding = [int(s) for s in attrs.strides], [int(p) for p in attrs.padding]
    extents = [static(d) for d in (*x.ty.shape.values[2:], *conv.ty.shape.values[2:])]
    if None in extents or any((n or 0) % s for n, s in zip(extents[2:], strides, strict=True)):
        return "Extents of its result are symbolic, or no multiples of its strides."
    rows, columns = (Phases(s, p, r) for s, p, r in zip(strides, padding, taps, strict=False))
    return rows, columns


def _weight(weight: GenericConst, rows: Phases, columns: Phases) -> GenericConst:
    """Give the weight (phase of rows, phase of columns, out; in; window) of the convolution."""
    old = weight.value.numpy()
    c, k = old.shape[:2]
    new = np.zeros((rows.stride, columns.stride, k, c, rows.window, columns.window), old.dtype)
    for q, u in np.ndindex(rows.stride, columns.stride):
        for i, j in np.ndindex(rows.window, columns.window):
            r, s = rows.tap(q, i), columns.tap(u, j)
            if r is not None and s is not None:
                new[q, u, :, :, i, j] = old[:, :, r, s].T
    merged = new.reshape(math.prod(new.shape[:3]), *new.shape[3:])
    return derived(relax.const(merged), "phases", [weight])
