"""Modules of one function, and what recomposition makes of them."""

import tvm
from relax_modules import typed_module
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from tvm_fusion.core.decisions import recording
from tvm_fusion.fusion.estimate import RegionCost
from tvm_fusion.rewrite.recompose.patterns import patterns
from tvm_fusion.rewrite.recompose.price import Price
from tvm_fusion.rewrite.recompose.recompose import recompose

op = relax.op
N = tirx.Var("n", "int64")


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def const(value, dtype="float32"):
    return relax.const(value, dtype)


def module(body, *types):
    """A module with one function of one dataflow block; the body gives one result or several."""
    return typed_module(lambda emit, *params: body(*params), *types)


def cleaned(mod):
    """Equal expressions are one before recomposition, as they are in the pipeline."""
    passes = [
        relax.transform.CanonicalizeBindings(),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.ir.transform.Sequential(passes)(mod)


class Agreeable:
    """A planner who takes everything, and at once."""

    def price(self, pattern, view, root, found):
        free = RegionCost(0.0, 0, 1, 0, 1)
        return Price(free, free, True)


def recomposed(mod, without=(), allow=()):
    """The module with everything replaced that is found, and what was decided."""
    mod = cleaned(mod)
    func = mod["main"]
    with recording() as log:
        for pattern in patterns(without):
            func = recompose(mod, func, pattern, Agreeable(), allow)
    mod.update_func(mod.get_global_var("main"), func)
    relax.analysis.well_formed(mod)  # raises
    return mod, log


def check(before, after, *types, allow=()):
    """One function becomes the other, and stays it."""
    found, log = recomposed(module(before, *types), allow=allow)
    assert_structural_equal(found, cleaned(module(after, *types)))
    again, _ = recomposed(found)
    assert_structural_equal(again, found)
    return log


def check_stays(body, *types, without=()):
    """Nothing is found."""
    mod = module(body, *types)
    found, log = recomposed(mod, without)
    assert_structural_equal(found, cleaned(mod))
    assert not [d for d in log if d.verdict == "accepted"]
    return log
