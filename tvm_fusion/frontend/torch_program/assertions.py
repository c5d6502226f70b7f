"""Leave out what an exported program asserts of values, with what is computed for that alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...core.decisions import Decision, record

_ASSERT = torch.ops.aten._assert_scalar.default
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def without_assertions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Drop the assertions about values in a program's graph, and say so.

    Models check their inputs (``torch._check_tensor_all``: as many image tokens as features), which
    reads values into Python's numbers and branches on them: operators that nothing else needs. What
    is asserted of extents alone stays; the signature has it.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Changed in place, branches included.

    Returns
    -------
    torch.export.ExportedProgram
        The program.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            dropped = [node for node in module.graph.nodes if _is_about_a_value(node)]
            for node in dropped:
                told = f" ({node.args[1]})" if len(node.args) > 1 else ""
                sentence = f"An assertion about a value{told} is not checked when the program runs."
                record(Decision(node.name, "", "refused", "assertion", sentence))
                module.graph.erase_node(node)
            if dropped:
                named = set(_symbols_of_extents(module.graph))
                module.graph.eliminate_dead_code(partial(_stays, named))
                module.recompile()
    return program


def _is_about_a_value(node: fx.Node) -> bool:
    """Whether a node asserts a number that comes from a tensor."""
    todo = [node] if node.target == _ASSERT else []
    seen: set[fx.Node] = set()
    while todo:
        one = todo.pop()
        if one.target in _READS:
            return True
        if one not in seen and not isinstance(one.meta.get("val"), torch.Tensor):
            seen.add(one)
            todo += one.all_input_nodes
    return False


def _stays(named: set[Any], node: fx.Node) -> bool:
    """Whether a node without users stays: for what it does, or for a symbol that it binds."""
    symbols = node.meta.get("unbacked_bindings") or {}
    return node.is_impure() or not named.isdisjoint(symbols)


def _symbols_of_extents(graph: fx.Graph) -> Iterator[Any]:
    """Yield the symbols in the shapes of all tensors."""
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            for extent in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(extent, torch.SymInt):
                    yield from extent.node.expr.free_symbols
