"""Convert cond and while_loop; :data:`CONVERTERS` has all operators whose arguments are graphs.

What is decided at compile time leaves no trace: the branch that a constant chooses, the trips of a
short loop. The rest becomes functions of the module, as for ONNX (:mod:`..control_flow`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax, tirx
from tvm.ir import GenericConst, is_prim_expr

from ..control_flow.lifted import add_function, branch, capture, items, shaped
from ..control_flow.loops import ENDLESS, Loop
from ..control_flow.recursion import convert_loop
from ..registry import Unsupported
from ..tensor_types import static
from . import complex_pairs
from .graph_scope import scope_of, size_of
from .python_numbers import as_tensor
from .scans import convert_associative_scan, convert_map, convert_scan
from .trip_counts import known_value, trip_count

op = relax.op


def convert_cond(importer: Any, node: fx.Node) -> list[Any]:
    """Convert cond: one branch in place where the condition is constant, else two functions."""
    condition, *graphs = (importer._retrieve_args(argument) for argument in node.args[:3])
    given = list(node.args[3]) if len(node.args) > 3 else []
    scope, names = scope_of(importer, node, given)
    known = static(condition) if is_prim_expr(condition) else condition
    if isinstance(known, GenericConst):
        known = bool(known.value.numpy().all())
    if isinstance(known, bool | int):
        return list(importer.translate(graphs[0 if known else 1], list(scope.values.values())))
    captured = capture(scope.bb, scope.values, names)
    ways = []
    for which, graph in zip(("true", "false"), graphs, strict=True):

        def build(graph: Any = graph) -> list[Any]:
            found = importer.translate(graph, [captured.values[name] for name in names])
            return [scope.as_tensor(value) for value in found]

        at = relax.Var("at", relax.ShapeType(captured.symbols))
        name = f"{node.name}_{which}"
        gvar, _ = add_function(scope.bb, name, [at, *captured.params], build)
        call = relax.Call(gvar, [relax.ShapeExpr(captured.symbols), *captured.args])
        ways.append(branch(scope.bb, functools.partial(scope.bb.emit, call)))
    if not is_prim_expr(condition):
        condition = scope.bb.emit(op.reshape(condition, relax.ShapeExpr([])))
    result = scope.bb.emit(relax.If(condition, *ways))
    return [shaped(scope.bb, leaf, node.name) for leaf in items(scope.bb, result)]


def convert_while_loop(importer: Any, node: fx.Node) -> list[Any]:
    """Convert while_loop; a number of trips that torch can tell makes it a counted one."""
    cond, body = (importer._retrieve_args(argument) for argument in node.args[:2])
    carried, extra = list(node.args[2]), list(node.args[3] if len(node.args) > 3 else ())
    scope, reads = scope_of(importer, node, extra)
    states = [importer._retrieve_args(state) for state in carried]

    known = [known_value(*pair) for pair in zip(carried, states, strict=True)]
    fixed = [known_value(*pair) for pair in zip(extra, scope.values.values(), strict=True)]
    trips = trip_count(cond, body, known, fixed)

    def step(_trip: Any, go: Any, before: list[Any], values: Any) -> tuple[Any, Any, Any]:
        outside = scope.read(reads, values)
        after = importer.translate(body, [*before, *outside])
        if trips is None:
            (go,) = importer.translate(cond, [*after, *outside])
        return go, after, []

    first = True
    if trips is None:
        states = [scope.as_tensor(state) for state in states]
        (first,) = importer.translate(cond, [*states, *scope.read(reads, None)])
    loop = Loop(
        node.name,
        ENDLESS if trips is None else trips,
        scope.as_tensor(first),
        states,
        [f"{node.name}_{i}" for i in range(len(states))],
        step,
        reads,
        [],
        size_of(cond, body),
        is_conditional=trips is None,
    )
    return convert_loop(scope, loop)


CONVERTERS: dict[str, Callable[[Any, fx.Node], list[Any]]] = {
    "cond": convert_cond,
    "while_loop": convert_while_loop,
    "scan": convert_scan,
    "map_impl": convert_map,
    "associative_scan": convert_associative_scan,
}


def is_control_flow(node: fx.Node) -> bool:
    """Tell whether a node is one of these."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and (
        node.target.__name__ in CONVERTERS
    )


def unsupported(node: fx.Node) -> Unsupported | None:
    """Say why a node cannot be converted."""
    if complex_pairs.touches_complex(node):
        return Unsupported("on complex tensors", "keep real and imaginary parts as two tensors")
    return None


def define_symbols(importer: Any, node: fx.Node, results: list[Any]) -> list[Any]:
    """Bind the extents of results that torch knows by symbols that nothing has defined yet."""
    defined, found = importer.symbols(), []
    for value, fake in zip(results, node.meta["val"], strict=True):
        if isinstance(fake, torch.Tensor) and not isinstance(value, relax.Expr):
            value = as_tensor(importer, value)
        if isinstance(fake, torch.Tensor):
            for extent, own in zip(fake.shape, value.ty.shape or (), strict=False):
                name = "" if isinstance(extent, int) else str(extent.node.expr)
                if name.isidentifier() and name not in defined and isinstance(own, tirx.Var):
                    importer.define(name, own)
        found.append(value)
    return found
