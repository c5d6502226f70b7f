"""Compute functions that torch composes in Python over half types in float32, rounded once.

Export leaves their operators, each of which rounds to the half type, and names the function that
they come from: see :mod:`.half_intermediates`.
"""

from __future__ import annotations

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

    Parameters
    ----------
    program : torch.export.ExportedProgram
        As exported; changed in place, branches included. Its types are those of the half type until
        it is traced again, as decomposing does.

    Returns
    -------
    torch.export.ExportedProgram
        The program.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            nodes = [n for n in module.graph.nodes if n.op == "call_function"]
            for call, group in groupby(nodes, lambda node: node.meta.get("torch_fn")):
                if call is not None and call[1] in COMPOSED:
                    _widen(module.graph, list(group))
            module.recompile()
    return program


def _widen(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Let nodes compute in float32, if all their floating point tensors are of one half type."""
    inside = set(nodes)
    given = dict.fromkeys(x for n in nodes for x in n.all_input_nodes if x not in inside)
    dtypes = {_dtype(node) for node in (*given, *nodes)}
    dtypes = {d for d in dtypes if d is not None and (d.is_floating_point or d.is_complex)}
    if len(nodes) < 2 or len(dtypes) != 1 or not dtypes.issubset(_HALVES):
        return
    (dtype,) = dtypes
    with graph.inserting_before(nodes[0]):
        wide = {x: _cast(graph, x, torch.float32) for x in given if _dtype(x) == dtype}
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
