"""Gathers, scatters, and values made of nothing."""

from typing import Any

import numpy as np

from ..builder import Builder, Rejected
from ..dims import Dim
from .registry import indices, is_static, recipe, static, static_axes


@recipe(3)
def lookup(b: Builder) -> None:
    if b.chance(0.4):  # an embedding
        x = b.leaf([b.one_of([5, 17, 127]), b.one_of([3, 8, 16])])
        axis = 0
    else:
        x = b.pick_float(lambda shape: bool(static_axes(shape)))
        axis = b.one_of(static_axes(b.shape(x)))
    bound = static(b.shape(x)[axis])
    rows: list[Any] = b.one_of([[], [3], [7], [2, 5]])
    symbols = [Dim(1, (name,)) for name in b.envs[0]]
    if rows and symbols and b.chance(0.5):
        rows = [*rows[:-1], b.one_of(symbols)]
    places = indices(b, rows, bound)
    b.emit("take", x, places, axis=axis, mode=b.one_of(["fast", "clip"]))


@recipe(2)
def gathering(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(static_axes(shape)) == len(shape) > 0)
    shape = [static(e) for e in b.shape(x)]
    name = b.one_of(["gather_elements", "gather_nd", "index_tensor"])
    if name == "gather_elements":
        axis = b.integer(0, len(shape))
        wanted = [*shape[:axis], b.one_of([1, 3, 7]), *shape[axis + 1 :]]
        places = b.leaf(wanted, "int64", low=0, high=shape[axis], constant=False)
        b.emit(name, x, places, axis=axis)
    elif name == "gather_nd":
        places = b.leaf([b.one_of([2, 5]), 1], "int64", low=0, high=shape[0], constant=False)
        b.emit(name, x, places)
    else:
        count = b.integer(1, len(shape) + 1)
        each = [b.leaf([4], "int64", low=0, high=e, constant=False) for e in shape[:count]]
        b.emit(name, x, *each)


@recipe(1.5)
def scattering(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(static_axes(shape)) == len(shape) > 0)
    shape, dtype = [static(e) for e in b.shape(x)], b.dtype_of(x)
    axis = b.integer(0, len(shape))
    count = min(3, shape[axis])
    name = b.one_of(["scatter_elements", "scatter_nd", "slice_scatter"])
    if name == "slice_scatter":
        update = [*shape[:axis], count, *shape[axis + 1 :]]
        b.emit(name, x, b.leaf(update, dtype), start=0, end=count, step=1, axis=axis)
        return
    places = b.rng.permutation(shape[axis] if name == "scatter_elements" else shape[0])
    if name == "scatter_nd":
        places = places[: min(3, shape[0])].reshape(-1, 1)
        at = b.leaf(places.shape, "int64", constant=True, data=places.astype("int64"))
        b.emit(name, x, at, b.leaf([places.size, *shape[1:]], dtype))
        return
    update = [*shape[:axis], count, *shape[axis + 1 :]]
    column = places[:count].reshape([-1 if i == axis else 1 for i in range(len(shape))])
    data = np.broadcast_to(column, update).astype("int64")
    at = b.leaf(update, "int64", constant=True, data=data)
    b.emit(name, x, at, b.leaf(update, dtype), axis=axis)


@recipe(1)
def hot(b: Builder) -> None:
    depth = b.one_of([3, 5, 17])
    places = indices(b, b.one_of([[3], [2, 5]]), depth)
    axis = b.one_of([-1, 0])
    b.emit("one_hot", places, gives=b.dtype, depth=depth, axis=axis, dtype=b.dtype)


@recipe(0.7)
def reversing_sequences(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2 and len(static_axes(shape[:2])) == 2)
    rows, length = (static(e) for e in b.shape(x)[:2])
    lengths = b.leaf([rows], "int64", low=1, high=length + 1, constant=False)
    b.emit("reverse_sequence", x, lengths, seq_axis=1, batch_axis=0)


@recipe(2)
def creating(b: Builder) -> None:
    name = b.one_of(["full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "arange"])
    x = b.pick_float(lambda shape: bool(shape))
    shape, dtype = b.shape(x), b.dtype_of(x)
    if name == "full":
        y = b.emit(name, gives=dtype, shape=shape, fill=0.75, dtype=dtype)
    elif name in ("zeros", "ones"):
        y = b.emit(name, gives=dtype, shape=shape, dtype=dtype)
    elif name == "arange":
        count = static(shape[-1]) if is_static(shape[-1]) else 0
        if not 0 < count < 20:
            raise Rejected("a long or symbolic range")
        y = b.emit(name, gives=dtype, start=0, end=count, step=1, dtype=dtype)
    else:
        y = b.emit(name, x, fill=0.75) if name == "full_like" else b.emit(name, x)
    b.emit(b.one_of(["add", "multiply", "maximum"]), x, y)


@recipe(0.7)
def identity_matrix(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2 and len(static_axes(shape[-2:])) == 2)
    rows, columns = (static(e) for e in b.shape(x)[-2:])
    k, dtype = b.integer(-1, 2), b.dtype_of(x)
    y = b.emit("eye", gives=dtype, n=rows, m=columns, k=k, dtype=dtype)
    b.emit("add", x, y)
