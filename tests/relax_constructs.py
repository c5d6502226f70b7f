# ruff: noqa: SIM108 - TVMScript knows no conditional expressions
"""Relax modules of one construct each, with their inputs and what numpy makes of them.

Foreign functions of the modules are registered here; they take and return tensors.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Sequential
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

X = np.random.default_rng(5).standard_normal((3, 7)).astype("float32")
Case = tuple[tvm.IRModule, tuple[Any, ...], Any]
CASES: dict[str, Case] = {}


def _register(name, function):
    tvm.register_global_func(f"constructs.{name}", function, override=True)


def _tensor(array):
    return tvm.runtime.tensor(np.ascontiguousarray(array))


_register("plus", lambda x: _tensor(x.numpy() + 1))
_register("first", lambda pair: pair[0])
_register("two", lambda x: tvm.runtime.convert([_tensor(x.numpy() + 1), _tensor(x.numpy() * 2)]))
_register("length", lambda text, x: _tensor(x.numpy() + len(text)))
_register("wrap", lambda x: tvm.runtime.convert([x]))
_register("turned", lambda x: tvm.runtime.ShapeTuple(list(x.shape)[::-1]))
_register("double", lambda x, y: y.copyfrom(x.numpy() * 2) and None)


def _thrice(x):
    x.copyfrom(x.numpy() * 3)
    return x


_register("thrice", _thrice)


def _case(name: str, mod: tvm.IRModule, inputs: tuple[Any, ...], expected: Any) -> None:
    CASES[name] = (mod, inputs, expected)


@I.ir_module
class ImpurePacked:
    @R.function(pure=False)
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
        b = R.call_packed("constructs.plus", x, ty_args=R.Tensor((3, 7), "float32"))
        c = R.exp(b)
        _ = R.assert_op(R.const(True, "bool"), format="never")
        d = R.call_inplace_packed(
            "constructs.thrice", c, inplace_indices=[0], ty_args=R.Tensor((3, 7), "float32")
        )
        e = R.add(d, b)
        return e


_case("impure_packed", ImpurePacked, (X,), 3 * np.exp(X + 1) + X + 1)


@I.ir_module
class PurePacked:
    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
        with R.dataflow():
            a = R.exp(x)
            t = R.call_pure_packed(
                "constructs.two",
                a,
                ty_args=R.Tuple(R.Tensor((3, 7), "float32"), R.Tensor((3, 7), "float32")),
            )
            f = R.call_pure_packed("constructs.first", t, ty_args=R.Tensor((3, 7), "float32"))
            q = t[1]
            s = R.call_pure_packed(
                "constructs.length", R.str("four"), q, ty_args=R.Tensor((3, 7), "float32")
            )
            o = R.call_pure_packed("constructs.wrap", s, ty_args=R.Object())
            u = R.call_pure_packed("constructs.first", o, ty_args=R.Tensor((3, 7), "float32"))
            d = R.call_dps_packed("constructs.double", (u,), out_ty=R.Tensor((3, 7), "float32"))
            y = R.add(R.tanh(f), d)
            R.output(y)
        return y


_case("pure_packed", PurePacked, (X,), np.tanh(np.exp(X) + 1) + 2 * (2 * np.exp(X) + 4))


@I.ir_module
class MatchCast:
    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor("float32", ndim=2):
        m = T.int64()
        k = T.int64()
        with R.dataflow():
            a = R.exp(x)
            u = R.call_pure_packed("constructs.plus", a, ty_args=R.Tensor("float32", ndim=2))
            R.output(u)
        b = R.match_cast(u, R.Tensor((m, k), "float32"))
        with R.dataflow():
            c = R.tanh(b)
            d = R.subtract(b, R.sum(c, axis=[1], keepdims=True))
            e = R.exp(R.reshape(d, (m * k,)))
            g = R.reshape(e, (k, m))
            R.output(g)
        return g


_U = np.exp(X) + 1
_case("match_cast", MatchCast, (X,), np.exp(_U - np.tanh(_U).sum(1, keepdims=True)).reshape(7, 3))


@I.ir_module(check_well_formed=False)  # a shape as a variable
class ShapeOfPacked:
    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor("float32", ndim=2):
        with R.dataflow():
            s = R.call_pure_packed("constructs.turned", x, ty_args=R.Shape(ndim=2))
            y = R.tanh(R.reshape(R.exp(x), s))
            R.output(y)
        return y


_case("shape_of_packed", ShapeOfPacked, (X,), np.tanh(np.exp(X).reshape(7, 3)))


@I.ir_module
class Branches:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((3, 7), "float32")) -> R.Tensor(
        (3, 7), "float32"
    ):
        w = R.exp(x)
        if c:
            s = R.sum(w)
            d = R.less(s, R.const(0.0, "float32"))
            if d:
                p = R.tanh(w)
            else:
                p = R.add(w, x)
            y = (p, x)
        else:
            q = R.sin(w)
            y = (q, w)
        a = y[0]
        b = y[1]
        z = R.multiply(R.add(a, b), w)
        return z


_case("branches", Branches, (np.array(True), X), (np.exp(X) + 2 * X) * np.exp(X))
_case("other_branch", Branches, (np.array(False), X), (np.sin(np.exp(X)) + np.exp(X)) * np.exp(X))


@I.ir_module
class Tuples:
    @R.function
    def main(
        t: R.Tuple(R.Tensor((3, 7), "float32"), R.Tuple(R.Tensor((7,), "float32"))),
        p: R.Tuple(R.Tensor((3, 2), "float32"), R.Tensor((3, 5), "float32")),
    ) -> R.Tuple(R.Tuple(R.Tensor((3, 7), "float32"), R.Tensor((3, 7), "float32"))):
        with R.dataflow():
            x = t[0]
            u = t[1]
            b = u[0]
            y = R.add(x, b)
            c = R.concat(p, axis=1)
            z = R.exp(c)
            o = ((y, z),)
            R.output(o)
        return o


_case(
    "tuples",
    Tuples,
    ((X, (X[0],)), (X[:, :2].copy(), X[:, 2:].copy())),
    (X + X[0], np.exp(X)),
)


@I.ir_module
class Recursion:
    @R.function
    def loop(i: R.Tensor((), "int32"), x: R.Tensor((3, 7), "float32")) -> R.Tensor(
        (3, 7), "float32"
    ):
        cls = Recursion
        c = R.less(i, R.const(3, "int32"))
        if c:
            r = cls.loop(R.add(i, R.const(1, "int32")), R.tanh(x))
        else:
            r = x
        return r

    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
        cls = Recursion
        a = R.exp(x)

        @R.function
        def inner(y: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
            b = R.tanh(y)
            return b

        r = cls.loop(R.const(0, "int32"), a)
        z = R.add(r, inner(a))
        return z


_T = np.tanh(np.exp(X))
_case("functions", Recursion, (X,), np.tanh(np.tanh(_T)) + _T)


@I.ir_module
class InPlace:
    @T.prim_func(private=True, s_tir=True)
    def add(A: T.Buffer((3, 7), "float32"), n: T.int64):
        for i, j in T.grid(3, 7):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                A[vi, vj] = A[vi, vj] + T.cast(n, "float32")

    @R.function(pure=False)
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
        cls = InPlace
        a = R.builtin.alloc_tensor(R.shape([3, 7]), R.dtype("float32"), R.prim_value(0))
        _ = R.call_packed("constructs.double", x, a, ty_args=R.Tuple)
        s = R.memory.alloc_storage(
            R.shape([84]), R.prim_value(0), R.str("global"), R.dtype("uint8")
        )
        m = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([3, 7]), R.dtype("float32"))
        _1 = R.call_packed("constructs.double", a, m, ty_args=R.Tuple)
        e = R.exp(x)
        b = R.call_tir_inplace(
            cls.add, (e, R.prim_value(2)), out_ty=R.Tensor((3, 7), "float32"), inplace_indices=[0]
        )
        c = R.add(R.tanh(a), m)
        d = R.add(b, c)
        return d


_case("in_place", InPlace, (X,), np.exp(X) + 2 + np.tanh(2 * X) + 4 * X)


@I.ir_module
class Empty:
    @R.function
    def main(
        x: R.Tensor((0, 7), "float32"), y: R.Tensor((3, 7), "float32"), i: R.Tensor((0,), "int64")
    ) -> R.Tuple(
        R.Tensor((3, 3), "float32"),
        R.Tensor((0, 3), "float32"),
        R.Tensor((0, 7), "float32"),
        R.Tensor((3, 7), "float32"),
    ):
        with R.dataflow():
            w = R.permute_dims(y)
            a = R.nn.relu(R.matmul(x, w))
            g = R.nn.softmax(R.take(y, i, axis=0))
            s = R.sum(x, axis=[0], keepdims=True)
            c = R.tanh(R.add(R.concat((x, y), axis=0), s))
            n = R.matmul(R.permute_dims(a), a)
            R.output(n, a, g, c)
        return (n, a, g, c)


_case(
    "empty",
    Empty,
    (np.zeros((0, 7), "float32"), X, np.zeros(0, "int64")),
    (
        np.zeros((3, 3), "float32"),
        np.zeros((0, 3), "float32"),
        np.zeros((0, 7), "float32"),
        np.tanh(X),
    ),
)


@I.ir_module
class Results:
    @R.function
    def main(
        x: R.Tensor((3, 7), "float32"),
    ) -> R.Tuple(R.Tensor((), "float32"), R.Tensor((3, 7), "float32"), R.Tensor((3, 7), "float32")):
        with R.dataflow():
            _ = R.null_value()
            a = R.exp(x)
            R.output(a)
        return (R.const(2.0, "float32"), a, x)


_case("results", Results, (X,), (np.float32(2), np.exp(X), X))


@I.ir_module
class _Plain:
    @R.function
    def main(x: R.Tensor((3, 7), "float32"), w: R.Tensor((7, 5), "float32")) -> R.Tensor(
        (3, 5), "float32"
    ):
        with R.dataflow():
            a = R.tanh(R.exp(x))
            c = R.nn.relu(R.matmul(a, w))
            e = R.multiply(c, R.const(2.0, "float32"))
            R.output(e)
        return e


W = np.random.default_rng(6).standard_normal((7, 5)).astype("float32")
_case(
    "primitive",
    Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
        ]
    )(_Plain),
    (X, W),
    2 * np.maximum(_T @ W, 0),
)


@I.ir_module
class ThreadLevel:
    @T.prim_func(private=True)
    def twice(a: T.Buffer((3, 7), "float32"), b: T.Buffer((3, 7), "float32")):
        for i in range(3):
            for j in range(7):
                b[i, j] = a[i, j] * T.float32(2)

    @R.function
    def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((7, 3), "float32"):
        with R.dataflow():
            a = R.exp(x)
            b = R.call_tir(ThreadLevel.twice, (a,), out_ty=R.Tensor((3, 7), "float32"))
            c = R.reshape(R.add(b, x), R.shape([7, 3]))
            d = R.tanh(c)
            R.output(d)
        return d


_case("thread_level", ThreadLevel, (X,), np.tanh(2 * np.exp(X) + X).reshape(7, 3))
