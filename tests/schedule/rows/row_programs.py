"""Row programs as the planner hands them over, each with what it must compute."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from numpy.lib.stride_tricks import sliding_window_view
from tvm import s_tir, te, tirx, topi

from tvm_fusion.core.tir.expressions import substitute
from tvm_fusion.program.program import Program
from tvm_fusion.program.stage import Axis, Stage


@dataclass
class Example:
    """``function(*inputs) -> outputs``; shapes may hold symbolic variables."""

    inputs: list
    outputs: list
    rows: int
    reference: Callable

    def program(self):
        """The stages, as a group's program has them."""
        func = te.create_prim_func([*self.inputs, *self.outputs])
        return program_of(func, self.rows, len(self.inputs))


def program_of(func, rows, inputs):
    """Read a PrimFunc whose first parameters are inputs, the others outputs; unit axes stay."""
    blocks = []
    tvm_ffi.structural_walk(func.body.block.body, (s_tir.SBlock, blocks.append))
    params = list(func.params)
    stages = tuple(map(_stage, blocks))
    return Program(tuple(params[:inputs]), tuple(params[inputs:]), (), stages, rows)


def _stage(block):
    axes = {tirx.IterVar.DataPar: [], tirx.IterVar.CommReduce: []}
    for iterator in block.iter_vars:
        axes[iterator.iter_type].append(Axis(iterator.var, iterator.dom.extent))
    stores = _stores(block.body)
    return Stage(
        block.name_hint,
        tuple(axes[tirx.IterVar.DataPar]),
        tuple(axes[tirx.IterVar.CommReduce]),
        tuple(store.buffer for store in stores),
        tuple(tuple(store.indices) for store in stores),
        tuple(store.value for store in stores),
        None if block.init is None else tuple(store.value for store in _stores(block.init)),
    )


def _stores(body):
    """The stores of a block, the variables that it binds substituted."""
    bound, stores = {}, []
    for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        value = substitute(stmt.value, bound)
        if isinstance(stmt, tirx.Bind):
            bound[stmt.var] = value
        else:
            stores.append(tirx.BufferStore(stmt.buffer, value, stmt.indices))
    return stores


def index(extent):
    """Relax makes all extents int64."""
    return tirx.IntImm("int64", extent) if isinstance(extent, int) else extent


def tensor(*shape, dtype="float32", name="x"):
    return te.placeholder([index(e) for e in shape], dtype, name)


def compute(shape, body, name):
    return te.compute([index(e) for e in shape], body, name)


def reduced(extent, name):
    return te.reduce_axis((tirx.IntImm("int64", 0), index(extent)), name)


def softmax(m, n, masked=False, logarithm=False, dtype="float32"):
    x, mask = tensor(m, n, dtype=dtype), tensor(m, n, name="mask")
    half = dtype != "float32"
    wide = compute((m, n), lambda i, j: x[i, j].astype("float32"), "wide") if half else x
    shifted = (
        compute((m, n), lambda i, j: wide[i, j] * 0.5 + mask[i, j], "scaled") if masked else wide
    )
    k = reduced(n, "k")
    top = compute((m,), lambda i: te.max(shifted[i, k], k), "top")
    e = compute((m, n), lambda i, j: te.exp(shifted[i, j] - top[i]), "e")
    k2 = reduced(n, "k2")
    total = compute((m,), lambda i: te.sum(e[i, k2], k2), "total")
    if logarithm:
        y = compute((m, n), lambda i, j: shifted[i, j] - top[i] - te.log(total[i]), "y")
    else:
        y = compute((m, n), lambda i, j: (e[i, j] / total[i]).astype(dtype), "y")

    def reference(x, mask=None):
        x = x.astype("float64")
        if masked:
            x = x * 0.5 + mask
        x = x - x.max(1, keepdims=True)
        total = np.exp(x).sum(1, keepdims=True)
        return [x - np.log(total) if logarithm else np.exp(x) / total]

    return Example([x, mask] if masked else [x], [y], 1, reference)


def softmax_over_middle(m, n, w):
    x = tensor(m, n, w)
    k, k2 = reduced(n, "k"), reduced(n, "k2")
    top = compute((m, w), lambda i, j: te.max(x[i, k, j], k), "top")
    e = compute((m, w, n), lambda i, j, c: te.exp(x[i, c, j] - top[i, j]), "e")
    total = compute((m, w), lambda i, j: te.sum(e[i, j, k2], k2), "total")
    y = compute((m, w, n), lambda i, j, c: e[i, j, c] / total[i, j], "y")

    def reference(x):
        e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
        return [(e / e.sum(1, keepdims=True)).transpose(0, 2, 1)]

    return Example([x], [y], 2, reference)


def layer_norm(m, n, dtype="float32", residual=False):
    x, r = tensor(m, n, dtype=dtype), tensor(m, n, dtype=dtype, name="r")
    gamma, beta = tensor(n, dtype=dtype, name="gamma"), tensor(n, dtype=dtype, name="beta")

    def wide(value):
        return value if dtype == "float32" else value.astype("float32")

    s = compute((m, n), lambda i, j: wide(x[i, j]) + wide(r[i, j]), "s") if residual else None
    source = (lambda i, j: s[i, j]) if residual else (lambda i, j: wide(x[i, j]))
    k, k2 = reduced(n, "k"), reduced(n, "k2")
    count = tirx.Cast("float32", n) if not isinstance(n, int) else tirx.const(float(n), "float32")
    total = compute((m,), lambda i: te.sum(source(i, k), k), "total")
    mean = compute((m,), lambda i: total[i] / count, "mean")
    squares = compute(
        (m,),
        lambda i: te.sum((source(i, k2) - mean[i]) * (source(i, k2) - mean[i]), k2),
        "squares",
    )
    scale = compute((m,), lambda i: 1.0 / te.sqrt(squares[i] / count + 1e-5), "scale")
    y = compute(
        (m, n),
        lambda i, j: ((source(i, j) - mean[i]) * scale[i] * wide(gamma[j]) + wide(beta[j])).astype(
            dtype
        ),
        "y",
    )
    copy = compute((m, n), lambda i, j: s[i, j].astype(dtype), "copy") if residual else None

    def reference(x, *rest):
        *r, gamma, beta = [a.astype("float64") for a in rest]
        x = x.astype("float64")
        if residual:
            x = x + r[0]
        y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma + beta
        return [x, y] if residual else [y]

    inputs = [x, r, gamma, beta] if residual else [x, gamma, beta]
    return Example(inputs, [copy, y] if residual else [y], 1, reference)


def rms_norm(m, n, dtype="float32"):
    x, r = (tensor(m, n, dtype=dtype, name=name) for name in "xr")
    weight = tensor(n, name="weight")
    s = compute((m, n), lambda i, j: x[i, j].astype("float32") + r[i, j].astype("float32"), "s")
    out = compute((m, n), lambda i, j: s[i, j].astype(dtype), "out")
    k = reduced(n, "k")
    squares = compute((m,), lambda i: te.sum(s[i, k] * s[i, k], k), "squares")
    y = compute(
        (m, n),
        lambda i, j: (s[i, j] / te.sqrt(squares[i] / float(n) + 1e-6) * weight[j]).astype(dtype),
        "y",
    )

    def reference(x, r, weight):
        s = x.astype("float64") + r.astype("float64")
        return [s, s / np.sqrt((s * s).mean(1, keepdims=True) + 1e-6) * weight]

    return Example([x, r, weight], [out, y], 1, reference)


def norm_of_parts(m, first, second):
    """Normalize rows that are those of two tensors, one behind the other."""
    x, r = tensor(m, first), tensor(m, second, name="r")

    def at(i, j):
        return tirx.if_then_else(j < first, x[i, j], r[i, j - first])

    k = reduced(first + second, "k")
    squares = compute((m,), lambda i: te.sum(at(i, k) * at(i, k), k), "squares")
    y = compute((m, first + second), lambda i, j: at(i, j) / te.sqrt(squares[i] + 1e-6), "y")

    def reference(x, r):
        s = np.concatenate([x, r], 1).astype("float64")
        return [s / np.sqrt((s * s).sum(1, keepdims=True) + 1e-6)]

    return Example([x, r], [y], 1, reference)


def group_norm_silu(n, groups, channels, h, w):
    x = tensor(n, groups * channels, h, w)
    gamma = tensor(groups * channels, name="gamma")
    c, i, j = (reduced(e, s) for e, s in ((channels, "c"), (h, "i"), (w, "j")))
    c2, i2, j2 = (reduced(e, s) for e, s in ((channels, "c2"), (h, "i2"), (w, "j2")))
    size = float(channels * h * w)

    def at(b, g, c, i, j):
        return x[b, g * channels + c, i, j]

    total = compute((n, groups), lambda b, g: te.sum(at(b, g, c, i, j), [c, i, j]), "total")
    mean = compute((n, groups), lambda b, g: total[b, g] / size, "mean")
    squares = compute(
        (n, groups),
        lambda b, g: te.sum(
            (at(b, g, c2, i2, j2) - mean[b, g]) * (at(b, g, c2, i2, j2) - mean[b, g]), [c2, i2, j2]
        ),
        "squares",
    )
    normal = compute(
        (n, groups, channels, h, w),
        lambda b, g, c, i, j: (
            (at(b, g, c, i, j) - mean[b, g])
            / te.sqrt(squares[b, g] / size + 1e-5)
            * gamma[g * channels + c]
        ),
        "normal",
    )
    y = compute(
        (n, groups, channels, h, w),
        lambda *a: normal(*a) / (1.0 + te.exp(-normal(*a))),
        "y",
    )

    def reference(x, gamma):
        v = x.astype("float64").reshape(n, groups, channels, h, w)
        axes = (2, 3, 4)
        v = (v - v.mean(axes, keepdims=True)) / np.sqrt(v.var(axes, keepdims=True) + 1e-5)
        v = v * gamma.reshape(groups, channels, 1, 1)
        return [v / (1 + np.exp(-v))]

    return Example([x, gamma], [y], 2, reference)


def instance_norm(n, c, h, w):
    return group_norm_silu(n, c, 1, h, w)


def total(shape, axis, fold="sum", dtype="float32"):
    """Sum, max, or product over some axes; what is left are the rows."""
    x = tensor(*shape, dtype=dtype)
    rows = [e for a, e in enumerate(shape) if a not in axis]
    folded = {a: reduced(shape[a], f"k{a}") for a in axis}

    def element(*row):
        row = iter(row)
        value = x(*[folded[a] if a in folded else next(row) for a in range(len(shape))])
        return getattr(te, fold)(value, list(folded.values()))

    y = compute(rows, element, "y")
    numpy_fold = {"sum": np.sum, "max": np.max, "min": np.min}[fold]
    return Example(
        [x], [y], len(rows), lambda x: [np.asarray(numpy_fold(x.astype("float64"), tuple(axis)))]
    )


def argmax(shape, axis):
    x = tensor(*shape)
    y = topi.argmax(x, axis)
    return Example([x], [y], len(shape) - 1, lambda x: [x.argmax(axis)])


def sum_and_max(m, n):
    x = tensor(m, n)
    k, k2 = reduced(n, "k"), reduced(n, "k2")
    a = compute((m,), lambda i: te.sum(x[i, k], k), "a")
    b = compute((m,), lambda i: te.max(x[i, k2] * 2.0, k2), "b")
    return Example([x], [a, b], 1, lambda x: [x.sum(1, dtype="float64"), 2.0 * x.max(1)])


def global_average(n, c, h, w):
    x = tensor(n, c, h, w)
    i, j = reduced(h, "i"), reduced(w, "j")
    s = compute((n, c), lambda b, a: te.sum(x[b, a, i, j], [i, j]), "s")
    y = compute((n, c), lambda b, a: s[b, a] / float(h * w), "y")
    return Example([x], [y], 2, lambda x: [x.mean((2, 3), dtype="float64")])


def max_pool(n, c, h, w, stride=1, pad=0):
    x = tensor(n, c, h, w)
    oh, ow = ((e + 2 * pad - 3) // stride + 1 for e in (h, w))
    i, j = reduced(3, "i"), reduced(3, "j")

    def element(b, a, y, z):
        row, column = y * stride + i - pad, z * stride + j - pad
        if not pad:
            return te.max(x[b, a, row, column], [i, j])
        inside = tirx.all(row >= 0, row < h, column >= 0, column < w)
        return te.max(
            te.if_then_else(inside, x[b, a, row, column], te.min_value("float32")), [i, j]
        )

    y = compute((n, c, oh, ow), element, "y")

    def reference(x):
        border = ((0, 0), (0, 0), (pad, pad), (pad, pad))
        x = np.pad(x, border, constant_values=-np.inf)
        return [sliding_window_view(x, (3, 3), (2, 3))[:, :, ::stride, ::stride].max((-1, -2))]

    return Example([x], [y], 4, reference)


def center_of_columns(m, c, n):
    """A reduction with results inside the row, and a second one over those."""
    x = tensor(m, n, c)
    k, k2 = reduced(n, "k"), reduced(c, "k2")
    mean = compute((m, c), lambda i, a: te.sum(x[i, k, a], k), "columns")
    top = compute((m,), lambda i: te.max(mean[i, k2], k2), "top")
    y = compute((m, c), lambda i, a: mean[i, a] - top[i], "y")

    def reference(x):
        s = x.astype("float64").sum(1)
        return [s - s.max(1, keepdims=True)]

    return Example([x], [y], 1, reference)


def half_epilogue(m, n):
    x = tensor(m, n)
    y = compute((m, n), lambda i, j: te.exp(x[i, j]).astype("float16"), "y")
    return Example([x], [y], 1, lambda x: [np.exp(x.astype("float64"))])


def mirrored(m, n):
    """A row buffer that is read at another element than it was written at."""
    x = tensor(m, n)
    e = compute((m, n), lambda i, j: te.exp(x[i, j]), "e")
    y = compute((m, n), lambda i, j: e[i, j] + e[i, n - 1 - j], "y")

    def reference(x):
        e = np.exp(x.astype("float64"))
        return [e + e[:, ::-1]]

    return Example([x], [y], 1, reference)


def mirrored_columns(m, c, n):
    """Results inside the row that threads exchange."""
    x = tensor(m, n, c)
    k = reduced(n, "k")
    s = compute((m, c), lambda i, a: te.sum(x[i, k, a], k), "s")
    y = compute((m, c), lambda i, a: s[i, a] - s[i, c - 1 - a], "y")

    def reference(x):
        s = x.astype("float64").sum(1)
        return [s - s[:, ::-1]]

    return Example([x], [y], 1, reference)


def softmax_of_lines_then_pairs(m, h, w):
    """Maps over the lines of a row, each read where the next one writes; then pairs of lines."""
    x = tensor(m, h, w)
    a = compute((m, h, w), lambda i, r, c: te.exp(x[i, r, c]), "a")
    k, k2 = reduced(w, "k"), reduced(w, "k2")
    top = compute((m, h), lambda i, r: te.max(a[i, r, k], k), "top")
    e = compute((m, h, w), lambda i, r, c: te.exp(a[i, r, c] - top[i, r]), "e")
    total = compute((m, h), lambda i, r: te.sum(e[i, r, k2], k2), "total")
    y = compute(
        (m, h - 1, w),
        lambda i, r, c: te.max(e[i, r, c] / total[i, r], e[i, r + 1, c] / total[i, r + 1]),
        "y",
    )

    def reference(x):
        a = np.exp(x.astype("float64"))
        e = np.exp(a - a.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True)
        return [np.maximum(y[:, :-1], y[:, 1:])]

    return Example([x], [y], 1, reference)


def scaled_by_extremum(m, n, w):
    """One row of everything, kept between its reduction and what reads it again."""
    x = tensor(m, n, w)
    z = compute((m, n, w), lambda i, j, c: te.sqrt(x[i, j, c] * x[i, j, c]), "z")
    k = [reduced(m, "k0"), reduced(n, "k1"), reduced(w, "k2")]
    low = te.compute((), lambda: te.min(z(*k), k), "low")
    y = compute((m, n, w), lambda i, j, c: z[i, j, c] * low(), "y")

    def reference(x):
        z = np.abs(x.astype("float64"))
        return [z * z.min()]

    return Example([x], [y], 0, reference)


def sliced(m, n, start, fold="sum", dtype="float32"):
    """Rows that begin somewhere in longer ones, less what all of a row's elements are together."""
    x = tensor(m, n + 8, dtype=dtype)
    k = reduced(n, "k")
    together = compute((m,), lambda i: getattr(te, fold)(x[i, k + start], k), "total")
    y = compute((m, n), lambda i, j: x[i, j + start] - together[i], "y")

    def reference(x):
        x = x.astype("float64")[:, start : start + n]
        return [x - getattr(x, fold)(1, keepdims=True)]

    return Example([x], [y], 1, reference)
