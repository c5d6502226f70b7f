"""Transposed convolutions as plain ones over all phases of the output (sub-pixel convolution)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from ...core.constants.weight_names import derived
from ...core.decisions import Decision, Verdict, record
from ...core.names.source import names_of, sources_of
from ...frontend.normalize.engine import Scope, op_name, rewrite
from ...frontend.tensor_types import HALF, dtype_of, static
from ..egraph.changes import Change, note
from ..search.judge import Choose, always

# For each operator, its layouts of images and weights, and the convolution without strides.
OPERATORS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW", relax.op.nn.conv1d),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW", relax.op.nn.conv2d),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW", relax.op.nn.conv3d),
}
DTYPES = {"llvm": ("float32",), "cuda": ("float32", *HALF)}  # by kinds of targets


@dataclass(frozen=True)
class Phases:
    """One spatial dimension: ``y[s Y + q] = sum over t of x[Y - t] w[s t + q + p]``.

    A window over ``t`` from ``first`` on serves all phases q; where it leaves the weight, that is
    zero.
    """

    # Of the transposed convolution: s, p, and extent of w.
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
        """Return the padding before and behind an image for so many outputs of each phase."""
        return self.last, count - 1 + self.window - extent - self.last

    def tap(self, phase: int, place: int) -> int | None:
        """Return the element of w at a place in the window; ``None`` where it is zero."""
        number = self.stride * (self.last - place) + phase + self.padding
        return number if 0 <= number < self.taps else None


@tvm.transform.module_pass(opt_level=0, name="TransposedConvByPhases")
class TransposedConvByPhases:
    """``conv_transpose(x, W) = depth_to_space(conv(x, W'))``, with a constant W' of all phases.

    With strides of s the s * s elements of an output block depend on the same few pixels: they are
    channels of a convolution without strides, whose results are stored in the places of the block.
    Written with zeros between the pixels it takes s * s times as many products. Groups stay groups,
    with the phases of each next to each other.

    On CPUs and NVIDIA's GPUs; without dilation, of static images whose extents are multiples of
    strides; not of depthwise ones.

    Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (2016).

    Examples
    --------
    >>> upsample = lambda x: op.nn.conv2d_transpose(x, weight(8, 4, 2, 2), strides=(2, 2))
    >>> with cpu:
    ...     calls(TransposedConvByPhases()(module(upsample, (1, 8, 4, 4))))
    ['relax.nn.conv2d', 'relax.reshape', 'relax.permute_dims', 'relax.reshape']
    """

    def __init__(self, choose: Choose = always) -> None:
        self._choose = choose

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function."""
        target = Target.current()
        if target is None or target.kind.name not in DTYPES:
            return mod
        return rewrite(mod, partial(_phases, choose=self._choose))


def _phases(value: Any, scope: Scope, choose: Choose) -> Any:
    if op_name(value) not in OPERATORS:
        return None
    found = _dimensions(value, DTYPES[Target.current().kind.name])
    if isinstance(found, str):
        return _refuse(scope, found)
    x, weight = value.args
    extents = [static(d) or 0 for d in x.ty.shape.values[2:]]
    results = [static(d) or 0 for d in value.ty.shape.values[2:]]
    counts = [n // d.stride for n, d in zip(results, found, strict=True)]
    pads = [d.pads(n, c) for n, c, d in zip(extents, counts, found, strict=True)]
    if min(itertools.chain(*pads)) < 0:
        return _refuse(scope, "Its padding is wider than its window.")
    padding = [*(before for before, _ in pads), *(behind for _, behind in pads)]
    strides = [d.stride for d in found]
    groups, each = int(value.attrs.groups), int(weight.ty.shape[1])
    phases = int(np.prod(strides))
    choice = choose(scope.func, [scope.target])
    if not choice.is_taken:
        return None
    sentence = f"It is a convolution of {phases} phases, without zero stuffing."
    _tell(scope, "accepted", sentence)
    sides = "conv_transpose(x, W)", "depth_to_space(conv(x, W'))"
    note(Change("", "", ("transposed_phases",), *sides, choice.gain))
    *_, convolve = OPERATORS[op_name(value)]
    made = _weight(weight, found, groups)
    dtype = value.attrs.out_dtype
    conv = convolve(x, made, padding=padding, groups=groups, out_dtype=dtype)
    if phases == 1:
        return conv
    conv = scope.emit(conv)
    batch, rank = x.ty.shape.values[0], len(found)
    split = relax.ShapeExpr([batch, groups, *strides, each, *counts])
    blocks = scope.emit(relax.op.reshape(conv, split))
    places = [n for i in range(rank) for n in (3 + rank + i, 2 + i)]
    order = scope.emit(relax.op.permute_dims(blocks, [0, 1, 2 + rank, *places]))
    return relax.op.reshape(order, relax.ShapeExpr([batch, groups * each, *results]))


def _refuse(scope: Scope, sentence: str) -> None:
    _tell(scope, "refused", sentence)


def _tell(scope: Scope, verdict: Verdict, sentence: str) -> None:
    names = names_of(sources_of(scope.target))
    code, name = "transposed_conv", scope.target.name
    record(Decision(name, "", verdict, code, sentence, producer_names=names))


def _dimensions(conv: relax.Call, dtypes: Sequence[str]) -> list[Phases] | str:
    """Read the dimensions of a transposed convolution, or say why it stays."""
    x, weight = conv.args
    attrs = conv.attrs
    if not isinstance(weight, GenericConst) or dtype_of(weight) not in dtypes:
        return f"Its weight is not a constant of {' or '.join(dtypes)}."
    image, kernel, _ = OPERATORS[op_name(conv)]
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if layouts != (image, kernel, image) or x.ty.ndim != len(image) or x.ty.shape is None:
        return f"It is in another layout than {image}."
    if any(int(d) != 1 for d in attrs.dilation):
        return "It is dilated."
    if int(attrs.groups) > 1 and int(attrs.groups) == int(weight.ty.shape[0]):
        return "It is depthwise."
    taps = [int(d) for d in weight.value.shape[2:]]
    strides, padding = [int(s) for s in attrs.strides], [int(p) for p in attrs.padding]
    extents = [static(d) for d in (*x.ty.shape.values[2:], *conv.ty.shape.values[2:])]
    if None in extents or any(
        (n or 0) % s for n, s in zip(extents[len(taps) :], strides, strict=True)
    ):
        return "Extents of its result are symbolic, or not multiples of its strides."
    return [Phases(s, p, r) for s, p, r in zip(strides, padding, taps, strict=False)]


def _weight(weight: GenericConst, dimensions: Sequence[Phases], groups: int) -> GenericConst:
    """Return the weight (group, phase of each dimension, out; in; window) of the convolution."""
    old = weight.value.numpy()
    c, k = old.shape[0] // groups, old.shape[1]
    own = old.reshape(groups, c, *old.shape[1:])
    strides, windows = ([getattr(d, n) for d in dimensions] for n in ("stride", "window"))
    new = np.zeros((groups, *strides, k, c, *windows), old.dtype)
    for phase in np.ndindex(*strides):
        for place in np.ndindex(*windows):
            taps = [d.tap(q, i) for d, q, i in zip(dimensions, phase, place, strict=True)]
            if None not in taps:
                part = own[(slice(None), slice(None), slice(None), *taps)]
                new[(slice(None), *phase, slice(None), slice(None), *place)] = part.swapaxes(1, 2)
    merged = new.reshape(groups * int(np.prod(strides)) * k, c, *windows)
    return derived(relax.const(merged), "phases", [weight])
