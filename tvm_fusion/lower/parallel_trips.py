"""Say in the closure of each parallel loop how many trips it has.

TVM hands a loop's body to its launcher as a function of a part's number and the number of parts,
and a closure of the variables that the loop uses, in the order of their use. A launcher that
chooses how many parts there are (``deploy/toolchain/thread_team.c``) has to know the trips:

    parallel i in range(1000): a[i] = ...
    trips: int64 = 1000;  parallel i in range(trips): a[i] = ...     # the closure begins with trips

A launcher that reads another number there divides the loop less evenly, and nothing else.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.structural import structural_map
from .stack import is_for_cpu


@tirx.transform.prim_func_pass(opt_level=0, name="ParallelTrips")
class ParallelTrips:
    """Bind the trips of parallel loops to a variable of 64 bits; the last pass for a host."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite the loops of one function that runs on a CPU."""
        if not is_for_cpu(func):
            return func
        return func.with_body(structural_map(func.body, (tirx.For, _bound), order="post"))


def _bound(loop: tirx.For) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.PARALLEL or _is_bound(loop.extent):
        return loop
    trips = tirx.Var("trips", "int64")
    var, body = loop.loop_var, loop.body
    if str(var.ty.dtype) != "int64":
        wide = tirx.Var(var.name, "int64")
        body = tirx.SeqStmt([tirx.Bind(var, tirx.Cast(str(var.ty.dtype), wide)), body])
        var = wide
    bound = tirx.For(
        var, tirx.IntImm("int64", 0), trips, loop.kind, body, annotations=loop.annotations
    )
    return tirx.SeqStmt([tirx.Bind(trips, _wide(loop.extent)), bound])


def _is_bound(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.Var) and str(extent.ty.dtype) == "int64"


def _wide(extent: ir.Expr) -> ir.Expr:
    return extent if str(extent.ty.dtype) == "int64" else tirx.Cast("int64", extent)
