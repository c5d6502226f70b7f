"""Count the trips of ``while_loop`` where its condition depends on nothing that is computed later.

The condition's graph and the part of the body that it reads, a counter mostly, are run by torch on
what is known when the program is compiled: numbers, and tensors that are filled with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm.ir import GenericConst

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
    node : object
        The argument in torch's graph.
    value : object
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
    cond, body : torch.fx.GraphModule
        Of the loop.
    states, extra : sequence
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
