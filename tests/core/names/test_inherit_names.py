"""New operators have the names of those that they replace, whichever pass wrote them."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.core.names.inherit import inherit
from tvm_fusion.core.names.source import Source, attach, bindings_of, names_of, sources_of


def module(write, shape=(2, 3), function="main"):
    """Build a function of x and w; every variable is new."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, R.Tensor(shape, "float32")) for name in "xw")
    with builder.function(function, [x, w]):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, x, w))
        builder.emit_func_output(out)
    return builder.get()


def op(name, *args):
    return getattr(relax.op, name)(*args)


def named(mod, *names):
    """Name the bindings of main in order; the last is the output's."""
    given = iter(names)
    by_var = {hash(b.var): next(given, "") for b in bindings_of(mod["main"].body)}
    return attach(mod, lambda b: (Source(by_var[hash(b.var)]),) if by_var[hash(b.var)] else ())


def names(mod):
    return [names_of(sources_of(b.var)) for b in bindings_of(mod["main"].body)]


def test_equal_operators_correspond_through_new_variables():
    def write(emit, x, w):
        a = emit(op("exp", x))
        b = emit(op("exp", w))
        return emit(op("add", a, b))

    before = named(module(write), "left", "right", "sum")
    found = inherit(before, module(write))
    assert names(found) == [("left",), ("right",), ("sum",), ("sum",)]
    tvm.ir.assert_structural_equal(found, module(write))


def test_a_joined_operator_names_all_three():
    weights = [relax.const(np.full((3, 3), i, "float32")) for i in range(3)]

    def three(emit, x, w):
        q, k, v = (emit(op("matmul", x, weight)) for weight in weights)
        return emit(op("add", emit(op("add", q, k)), v))

    joined = relax.const(np.concatenate([w.value.numpy() for w in weights], 1))

    def one(emit, x, w):
        parts = emit(op("split", emit(op("matmul", x, joined)), 3, -1))
        q, k, v = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
        return emit(op("add", emit(op("add", q, k)), v))

    before = named(module(three), "q", "k", "v", "qk", "out")
    product, split, q, k, v, qk, out, _ = names(inherit(before, module(one)))
    assert (product, split) == (("q", "k", "v"),) * 2
    assert (q, k, v, qk, out) == (("q",), ("k",), ("v",), ("qk",), ("out",))


def test_what_is_replaced_by_less():
    def spelled(emit, x, w):
        s = emit(op("sigmoid", x))
        m = emit(op("multiply", x, s))
        return emit(op("add", m, w))

    def short(emit, x, w):
        return emit(op("add", emit(relax.op.nn.silu(x)), w))

    before = named(module(spelled), "Sigmoid", "Mul", "Add")
    assert names(inherit(before, module(short))) == [("Sigmoid", "Mul"), ("Add",), ("Add",)]


def test_what_is_replaced_by_nothing():
    def with_identity(emit, x, w):
        return emit(op("exp", emit(op("multiply", x, relax.const(1.0)))))

    def without(emit, x, w):
        return emit(op("exp", x))

    before = named(module(with_identity), "Identity", "Exp")
    assert names(inherit(before, module(without)))[0] == ("Exp", "Identity")


def test_what_is_added():
    def short(emit, x, w):
        return emit(op("add", emit(op("exp", x)), w))

    def with_casts(emit, x, w):
        half = emit(op("astype", emit(op("exp", x)), "float16"))
        return emit(op("add", emit(op("astype", half, "float32")), w))

    before = named(module(short), "Exp", "Add")
    found = names(inherit(before, module(with_casts)))
    assert found == [("Exp",), ("Exp",), ("Exp",), ("Add",), ("Add",)]


def test_nothing_is_named_where_nothing_was():
    mod = module(lambda emit, x, w: emit(op("exp", x)))
    after = module(lambda emit, x, w: emit(op("tanh", x)))
    assert inherit(mod, after) is after


@pytest.mark.parametrize(
    "rewrite", [relax.transform.CanonicalizeBindings, relax.transform.ToNonDataflow]
)
def test_passes_of_tvm(rewrite):
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            with R.dataflow():
                a = R.exp(x)
                b = a
                c = R.tanh(b)
                R.output(c)
            return c

    before = attach(Module, lambda b: (Source("", (b.var.name,)),))
    after = rewrite()(before)
    found = inherit(before, after)
    tvm.ir.assert_structural_equal(found, after)
    assert all(names(found))


def test_shared_operators_do_not_join_what_reads_them():
    """A mask that all layers read, written anew with them, is no reason to name all layers."""

    def layers(scale):
        def write(emit, x, w):
            mask = emit(op("negative", emit(op("exp", w)))) if scale else emit(op("exp", w))
            for _ in range(20):
                x = emit(op("tanh", emit(op("add", x, mask))))
                x = emit(op("multiply", x, mask))
            return x

        return write

    plain = module(layers(False))
    count = len(names(plain)) - 1
    before = named(plain, *(f"n{i}" for i in range(count)))
    found = names(inherit(before, module(layers(True))))
    assert max(map(len, found)) <= 3
    assert set().union(*found) >= {f"n{i}" for i in range(count)}
