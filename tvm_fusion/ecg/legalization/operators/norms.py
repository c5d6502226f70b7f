"""Normalisations and variances: the mean first, then the centred squares.

TOPI's group and instance norm sum ``x`` and ``x^2`` in one two-result reduction and take
``E[x^2] - E[x]^2``, which loses every digit once the mean is large against the deviation; its RMS
norm copies the data three times. Here each statistic is a single-result reduction block of its own,
the form that schedules know how to join over the rows, and what is the same for a whole row is
computed once per row. ``center`` and ``scale`` are honoured, which stock ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import ir, relax, te, tirx

from ..expand import Legalization

#: Position of an element -> position of its statistics.
Kept = Callable[[Sequence[ir.Expr]], Sequence[ir.Expr]]


def layer_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` over the given axes."""
    attrs = call.attrs

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        rows = _Rows(x, attrs.axes)
        return _standardize(
            x, rows.statistics("T_layer_norm", attrs.epsilon), rows.kept, "T_layer_norm",
            gamma if attrs.scale else None, beta if attrs.center else None, rows.inner,
        )  # fmt: skip

    return bb.call_te(compute, *call.args, primfunc_name_hint="layer_norm")


def instance_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Layer norm over the spatial axes, with one gamma and one beta per channel."""
    axes = call.attrs.axes
    return _norm_of_channels(bb, call, "instance_norm", lambda x, _: _Rows(x, axes))


def group_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Layer norm over the spatial axes and the channels of a group, gamma and beta per channel."""
    axes, groups = call.attrs.axes, int(call.attrs.num_groups)
    return _norm_of_channels(
        bb, call, "group_norm", lambda x, channel: _GroupRows(x, axes, channel, groups)
    )


def _norm_of_channels(
    bb: relax.BlockBuilder, call: relax.Call, name: str, rows_of: Callable[[te.Tensor, int], _Rows]
) -> relax.Expr:
    """Standardize rows, of a tensor and its axis of channels; gamma and beta are per channel."""
    attrs = call.attrs

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        channel = int(attrs.channel_axis) % len(x.shape)
        rows = rows_of(x, channel)
        return _standardize(
            x, rows.statistics(f"T_{name}", attrs.epsilon), rows.kept, f"T_{name}",
            gamma if attrs.scale else None, beta if attrs.center else None,
            lambda index: [index[channel]],
        )  # fmt: skip

    return bb.call_te(compute, *call.args, primfunc_name_hint=name)


def rms_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the given axes."""
    attrs = call.attrs

    def compute(x: te.Tensor, weight: te.Tensor) -> te.Tensor:
        rows = _Rows(x, attrs.axes)
        squares = rows.sum(lambda _, index: x(*index) * x(*index), "T_rms_norm_square_sum")
        scale = rows.map(
            lambda *row: tirx.rsqrt(squares(*row) / rows.count + _const(attrs.epsilon, x)),
            "T_rms_norm_rsqrt",
        )
        return te.compute(
            x.shape,
            lambda *index: x(*index) * scale(*rows.kept(index)) * weight(*rows.inner(index)),
            name="T_rms_norm",
        )

    return bb.call_te(compute, *call.args, primfunc_name_hint="rms_norm")


def variance(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Mean of the squared deviations from the mean."""
    return bb.call_te(lambda x: _variance(x, call), call.args[0], primfunc_name_hint="variance")


def std(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Square root of the variance."""

    def compute(x: te.Tensor) -> te.Tensor:
        result = _variance(x, call)
        return te.compute(result.shape, lambda *i: tirx.sqrt(result(*i)), name="T_std")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="std")


class _Rows:
    """The elements that are reduced together, and where their statistics are kept."""

    def __init__(self, x: te.Tensor, axes: Sequence[Any] | None) -> None:
        ndim = len(x.shape)
        self.x = x
        self.axes = sorted({int(a) % ndim for a in (range(ndim) if axes is None else axes)})
        self.kept_axes = [a for a in range(ndim) if a not in self.axes]

    def kept(self, index: Sequence[ir.Expr]) -> Sequence[ir.Expr]:
        """Position of an element's statistics."""
        return [index[a] for a in self.kept_axes]

    def inner(self, index: Sequence[ir.Expr]) -> Sequence[ir.Expr]:
        """Position of an element within its row."""
        return [index[a] for a in self.axes]

    @property
    def shape(self) -> list[ir.Expr]:
        """Shape of the statistics."""
        return [self.x.shape[a] for a in self.kept_axes]

    @property
    def extents(self) -> list[ir.Expr]:
        """Extents that are reduced."""
        return [self.x.shape[a] for a in self.axes]

    @property
    def count(self) -> ir.Expr:
        """Number of elements of a row, in the data's type."""
        number = reduce(lambda a, b: a * b, self.extents, tirx.IntImm("int64", 1))
        return (
            tirx.Cast(self.x.dtype, number)
            if not isinstance(number, tirx.IntImm)
            else (_const(int(number), self.x))
        )

    def position(self, row: Sequence[ir.Expr], inner: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Position in the data of an element of a row."""
        where = dict(zip([*self.kept_axes, *self.axes], [*row, *inner], strict=True))
        return [where[a] for a in range(len(self.x.shape))]

    def sum(self, value: Callable[[Any, Any], ir.Expr], name: str) -> te.Tensor:
        """Sum a function of the row and of an element's position over each row."""

        def compute(*row: ir.Expr) -> ir.Expr:
            ks = [te.reduce_axis((0, e), name=f"k{i}") for i, e in enumerate(self.extents)]
            return te.sum(value(row, self.position(row, ks)), axis=ks)

        return te.compute(self.shape, compute, name=name)

    def map(self, value: Callable[..., ir.Expr], name: str) -> te.Tensor:
        """Compute one value per row."""
        return te.compute(self.shape, value, name=name)

    def centred_squares(self, name: str) -> tuple[te.Tensor, te.Tensor]:
        """Mean of each row, and the sum of the squared deviations from it."""
        total = self.sum(lambda _, index: self.x(*index), f"{name}_sum")
        mean = self.map(lambda *row: total(*row) / self.count, f"{name}_mean")

        def square(row: Sequence[ir.Expr], index: Sequence[ir.Expr]) -> ir.Expr:
            deviation = self.x(*index) - mean(*row)
            return deviation * deviation

        return mean, self.sum(square, f"{name}_square_sum")

    def statistics(self, name: str, epsilon: float) -> tuple[te.Tensor, te.Tensor]:
        """Mean of each row, and ``1 / sqrt(variance + epsilon)``."""
        mean, squares = self.centred_squares(name)
        scale = self.map(
            lambda *row: tirx.rsqrt(squares(*row) / self.count + _const(epsilon, self.x)),
            f"{name}_rsqrt",
        )
        return mean, scale


class _GroupRows(_Rows):
    """Rows that span the spatial axes and a group of neighbouring channels."""

    def __init__(self, x: te.Tensor, axes: Sequence[Any], channel: int, groups: int) -> None:
        super().__init__(x, [*axes, channel])
        self.channel, self.groups = channel, groups
        self.per_group = x.shape[channel] // groups

    def kept(self, index: Sequence[ir.Expr]) -> Sequence[ir.Expr]:
        return [*super().kept(index), index[self.channel] // self.per_group]

    @property
    def shape(self) -> list[ir.Expr]:
        return [*super().shape, tirx.IntImm("int64", self.groups)]

    @property
    def extents(self) -> list[ir.Expr]:
        return [self.per_group if a == self.channel else self.x.shape[a] for a in self.axes]

    def position(self, row: Sequence[ir.Expr], inner: Sequence[ir.Expr]) -> list[ir.Expr]:
        *batch, group = row
        where = super().position(batch, inner)
        where[self.channel] = group * self.per_group + where[self.channel]
        return where


def _standardize(
    x: te.Tensor,
    statistics: tuple[te.Tensor, te.Tensor],
    kept: Kept,
    name: str,
    gamma: te.Tensor | None,
    beta: te.Tensor | None,
    parameter: Kept,
) -> te.Tensor:
    mean, scale = statistics

    def compute(*index: ir.Expr) -> ir.Expr:
        value = (x(*index) - mean(*kept(index))) * scale(*kept(index))
        if gamma is not None:
            value = value * gamma(*parameter(index))
        return value + beta(*parameter(index)) if beta is not None else value

    return te.compute(x.shape, compute, name=name)


def _variance(x: te.Tensor, call: relax.Call) -> te.Tensor:
    rows = _Rows(x, call.attrs.axis)
    _, squares = rows.centred_squares("T_variance")
    if not call.attrs.keepdims:
        return rows.map(lambda *row: squares(*row) / rows.count, "T_variance")
    shape = [tirx.IntImm("int64", 1) if a in rows.axes else e for a, e in enumerate(x.shape)]
    return te.compute(
        shape, lambda *index: squares(*rows.kept(index)) / rows.count, name="T_variance"
    )


def _const(value: float, like: te.Tensor) -> ir.Expr:
    return tirx.const(float(value), str(like.dtype))


LEGALIZATIONS: dict[str, Legalization] = {
    "relax.nn.group_norm": group_norm,
    "relax.nn.instance_norm": instance_norm,
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.rms_norm": rms_norm,
    "relax.std": std,
    "relax.variance": variance,
}
