"""Compute functions that torch composes in Python over half types in float32, rounded once.

Export leaves their operators, each of which rounds to the half type, and names the function that
they come from: see :mod:`..half.intermediates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import fx

_HALVES = (torch.float16, torch.bfloat16)
# Of torch.nn.functional. Layers of products, as multi_head_attention_forward, are none: kernels
# read what lies between their products in half types.
_NAMES = """
    gaussian_nll_loss linear_cross_entropy local_response_norm multilabel_soft_margin_loss normalize
    softsign tanhshrink triplet_margin_with_distance_loss
"""
COMPOSED = frozenset(f"function.{name}" for name in _NAMES.split())


def between_casts(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Put casts around what comes of one call of a composed function.

    Returns
    -------
    torch.export.ExportedProgram
        The program, or another one with casts in it, branches included. Its types are those of the
        half type until it is traced again, as decomposing does.
    """
    if next(_calls(program), None) is None:
        return program
    program = program.run_decompositions({})  # which copies: the user's stays as it is
    for graph, nodes, dtype in list(_calls(program)):
        _widen(graph, nodes, dtype)
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            module.recompile()
    return program


def _calls(
    program: torch.export.ExportedProgram,
) -> Iterator[tuple[fx.Graph, list[fx.Node], torch.dtype]]:
    """Yield the nodes of each call whose floating point tensors are all of one half type."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            nodes = [n for n in module.graph.nodes if n.op == "call_function"]
            for call, group in groupby(nodes, lambda node: node.meta.get("torch_fn")):
                if call is not None and call[1] in COMPOSED:
                    members = list(group)
                    dtypes = {_dtype(node) for node in (*_given(members), *members)}
                    dtypes = {d for d in dtypes if d and (d.is_floating_point or d.is_complex)}
                    if len(members) > 1 and len(dtypes) == 1 and dtypes.issubset(_HALVES):
                        yield module.graph, members, dtypes.pop()


def _given(nodes: list[fx.Node]) -> dict[fx.Node, None]:
    """Return what nodes read that is none of them, in order."""
    inside = set(nodes)
    return dict.fromkeys(x for n in nodes for x in n.all_input_nodes if x not in inside)


def _widen(graph: fx.Graph, nodes: list[fx.Node], dtype: torch.dtype) -> None:
    """Let nodes compute in float32 what they compute in a half type."""
    inside = set(nodes)
    with graph.inserting_before(nodes[0]):
        wide = {x: _cast(graph, x, torch.float32) for x in _given(nodes) if _dtype(x) == dtype}
    for node in nodes:
        readers = [user for user in node.users if user not in inside]
        node.args, node.kwargs = fx.node.map_aggregate(
            (node.args, dict(node.kwargs)),
            lambda x: wide.get(x, x) if isinstance(x, fx.Node) else _widened(x, dtype),
        )
        if readers and _dtype(node) == dtype:
            with graph.inserting_after(nodes[-1]):
                narrow = _cast(graph, node, dtype)
            for user in readers:
                user.replace_input_with(node, narrow)


def _widened(value: Any, dtype: torch.dtype) -> Any:
    return torch.float32 if value is dtype else value


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    cast = graph.call_function(torch.ops.aten.to.dtype, (node, dtype))
    cast.meta = {**node.meta, "val": node.meta["val"].to(dtype)}
    return cast


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
