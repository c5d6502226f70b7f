"""Convert cond and while_loop; :data:`CONVERTERS` has all operators whose arguments are graphs.

What is decided at compile time leaves no trace: the branch that a constant chooses, the trips of a
short loop. The rest becomes functions of the module, as for ONNX (:mod:`..control_flow`).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx
from tvm.ir import GenericConst, is_prim_expr

from ..control_flow.lifted import add_function, branch, capture, items, shaped
from ..control_flow.loops import ENDLESS, Loop, Slices, take_slice
from ..control_flow.recursion import convert_loop
from ..registry import Unsupported
from ..tensor_types import static
from . import complex_pairs
from .python_numbers import as_tensor

# What a graph inside a node of torch's reads, as :mod:`..control_flow` asks for it.


class Scope:
    """What :mod:`..control_flow` asks of an importer: the builder, and values by name.

    Parameters
    ----------
    values : dict of str to object
        What the graphs of a node read from around it.
    """

    def __init__(self, importer: Any, values: dict[str, Any]):
        self.importer, self.values, self.bb = importer, values, importer.block_builder

    @property
    def copies(self) -> int:
        """How often the graph around is unrolled."""
        return int(self.importer.copies)

    @copies.setter
    def copies(self, value: int) -> None:
        self.importer.copies = value

    def read(self, names: Sequence[str], inside: Any) -> list[Any]:
        """Read values by name: from around the node, or as the arguments of a function inside."""
        values = self.values if inside is None else inside
        return [values[name] for name in names]

    def as_tensor(self, value: Any) -> Any:
        """Make a tensor of a tensor, a number or an extent."""
        return as_tensor(self.importer, value)


def scope_of(importer: Any, node: fx.Node, given: Sequence[Any]) -> tuple[Scope, list[str]]:
    """Rename what a node's graphs read to names of its own; return these, too."""
    values = [importer._retrieve_args(argument) for argument in given]
    names = [f"{node.name}_reads_{i}" for i in range(len(values))]
    return Scope(importer, dict(zip(names, values, strict=True))), names


def size_of(*graphs: fx.GraphModule) -> int:
    """Count the operators of graphs, those inside their nodes included."""
    return sum(
        node.op == "call_function"
        for graph in graphs
        for module in graph.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )


# Convert scan, associative_scan and map: loops over the slices of tensors.
def convert_scan(importer: Any, node: fx.Node) -> list[Any]:
    """Convert scan: states, and one slice of its results a trip."""
    graph = importer._retrieve_args(node.args[0])
    states = [importer._retrieve_args(state) for state in node.args[1]]
    extra = node.args[3] if len(node.args) > 3 else ()
    return _over_slices(importer, node, graph, states, node.args[2], extra)


def convert_map(importer: Any, node: fx.Node) -> list[Any]:
    """Convert map: a graph for every slice."""
    graph = importer._retrieve_args(node.args[0])
    return _over_slices(importer, node, graph, [], node.args[1], node.args[2])


def _over_slices(
    importer: Any,
    node: fx.Node,
    graph: fx.GraphModule,
    states: list[Any],
    scanned: Sequence[Any],
    extra: Sequence[Any],
) -> list[Any]:
    """Convert a loop over the slices of tensors along their first axis."""
    scope, names = scope_of(importer, node, [*scanned, *extra])
    trips = _static_or_symbol(scope.values[names[0]].ty.shape[0])
    kept = len(states)

    def step(trip: Any, go: Any, before: list[Any], values: Any) -> tuple[Any, Any, Any]:
        outside = scope.read(names, values)
        parts = [take_slice(scope.bb, value, 0, trip) for value in outside[: len(scanned)]]
        results = importer.translate(graph, [*before, *parts, *outside[len(scanned) :]])
        return go, results[:kept], [scope.as_tensor(value) for value in results[kept:]]

    n_results = len(_output(graph)) - kept
    loop = Loop(
        node.name,
        trips,
        relax.const(True, "bool"),
        states,
        [f"{node.name}_{i}" for i in range(kept)],
        step,
        names,
        [Slices(f"{node.name}_slices_{i}") for i in range(n_results)],
        size_of(graph) + len(scanned),
    )
    return convert_loop(scope, loop)


def convert_associative_scan(importer: Any, node: fx.Node) -> list[Any]:
    """Convert associative_scan: the states of a scan, one after the other."""
    graph, scanned = importer._retrieve_args(node.args[0]), list(node.args[1])
    extra = list(node.args[2]) if len(node.args) > 2 else []
    scope, names = scope_of(importer, node, [*scanned, *extra])
    values = list(scope.values.values())[: len(scanned)]
    extent = _static_or_symbol(values[0].ty.shape[0])
    if extent == 0:
        raise Unsupported("of no elements", "leave it out")
    trips = extent - 1

    def step(trip: Any, go: Any, before: list[Any], around: Any) -> tuple[Any, Any, Any]:
        outside = scope.read(names, around)
        parts = [take_slice(scope.bb, value, 0, trip + 1) for value in outside[: len(scanned)]]
        after = importer.translate(graph, [*before, *parts, *outside[len(scanned) :]])
        return go, after, list(after)

    loop = Loop(
        node.name,
        trips,
        relax.const(True, "bool"),
        [take_slice(scope.bb, value, 0, 0) for value in values],
        [f"{node.name}_{i}" for i in range(len(scanned))],
        step,
        names,
        [Slices(f"{node.name}_slices_{i}") for i in range(len(scanned))],
        size_of(graph) + len(scanned),
    )
    later = [scope.bb.emit(value) for value in convert_loop(scope, loop)[len(scanned) :]]
    first = [op.strided_slice(v, [0], [0], [1], assume_inbound=True) for v in values]
    return [
        scope.bb.emit(op.concat([scope.bb.emit(one), rest], axis=0))
        for one, rest in zip(first, later, strict=True)
    ]


def _static_or_symbol(extent: Any) -> Any:
    """Return an extent as a number where it is one."""
    known = static(extent)
    return extent if known is None else known


def _output(graph: fx.GraphModule) -> Sequence[Any]:
    (node,) = graph.graph.find_nodes(op="output")
    return tuple(node.args[0])


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


# Count the trips of ``while_loop`` where its condition depends on nothing that is computed later.
#
# The condition's graph and the part of the body that it reads, a counter mostly, are run by torch
# on what is known when the program is compiled: numbers, and tensors that are filled with one.
# Operators run before the number of trips is given up: a second at most.
STEPS = 100_000
# Elements of a tensor that takes part.
_SMALL = 64
_MADE = ("full.default", "scalar_tensor.default", "zeros.default", "ones.default", "arange.default")


class Unknown:
    """Stands for a value that is known only when the model runs."""


UNKNOWN = Unknown()


def known_value(node: Any, value: Any) -> Any:
    """Return the number or small tensor that an argument is, or :data:`UNKNOWN`.

    Parameters
    ----------
    node
        The argument in torch's graph.
    value
        What it is converted to.
    """
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        plain = array.dtype.kind in "biuf" and array.size <= _SMALL
        return torch.from_numpy(np.array(array)) if plain else UNKNOWN
    if not isinstance(node, fx.Node) or node.all_input_nodes:
        return UNKNOWN
    is_made = node.op == "call_function" and node.target.__name__ in _MADE
    return _run(node, {}) if is_made else UNKNOWN


def trip_count(
    cond: fx.GraphModule, body: fx.GraphModule, states: Sequence[Any], extra: Sequence[Any]
) -> int | None:
    """Return how many trips are made, None where that is known only when the model runs.

    Parameters
    ----------
    states, extra
        What the first trip is given and what every trip reads: values, or :data:`UNKNOWN`.
    """
    states, trips, left = list(states), 0, STEPS
    while left > 0:
        (goes_on,) = _results(cond, [*states, *extra])
        if goes_on is UNKNOWN:
            return None
        if not bool(goes_on):
            return trips
        states = _results(body, [*states, *extra])
        trips += 1
        left -= len(cond.graph.nodes) + len(body.graph.nodes)
    return None


def _results(module: fx.GraphModule, given: Sequence[Any]) -> list[Any]:
    """Run the part of a graph that is known; a result that is not is :data:`UNKNOWN`."""
    values: dict[fx.Node, Any] = {}
    inputs = iter(given)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "output":
            results = node.args[0]
            results = results if isinstance(results, list | tuple) else [results]
            return [values[r] if isinstance(r, fx.Node) else r for r in results]
        else:
            values[node] = _run(node, values)
    return []


def _run(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """Run one operator on known values; torch's own arithmetic is what the program means."""
    inputs = [values.get(n, UNKNOWN) for n in node.all_input_nodes]
    if node.op != "call_function" or any(value is UNKNOWN for value in inputs):
        return UNKNOWN
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return UNKNOWN
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return UNKNOWN
    args = fx.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
    meta = node.meta.get("val")
    if isinstance(meta, torch.Tensor) and meta.numel() > _SMALL:
        return UNKNOWN
    with torch.no_grad():
        return node.target(*args[0], **args[1])
