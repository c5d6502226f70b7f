"""Fold constant subexpressions with numpy."""

from typing import Any

import tvm
from tvm import relax

from ..engine import Scope, op_name, rewrite
from .graph import ConstantGraph, Node
from .stored import choose_stored

_ROUNDS = 3  # shapes that were expressions of constants let further operators be evaluated


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """Replace operators on constants by their results.

    Unlike TVM's ``FoldConstant`` nothing is compiled, and what is stored does not grow: of an
    expression that is folded in part, that part whose results take the fewest bytes. A broadcast
    stays an operator, so does the conversion of packed weights to floating point, and a tied
    embedding is not stored twice; the exceptions are those of :mod:`.stored`. A cast of a
    matrix of float8, which tensor cores multiply as it is, stays as well.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Fold in every rewritable function."""
        unknown: dict[int, relax.Var] = {}
        mod = rewrite(mod, _shapes)
        for _ in range(_ROUNDS):
            before = mod
            mod = _fold(mod, unknown)
            if mod.same_as(before):
                break
            mod = rewrite(mod, _shapes)
        return mod


def _shapes(value: Any, _scope: Scope) -> Any:
    """Read a shape off a tensor's type: None, or a ShapeExpr if the rank is known."""
    return value.args[0].ty.shape if op_name(value) == "relax.shape_of" else None


def _fold(mod: tvm.IRModule, unknown: dict[int, relax.Var]) -> tvm.IRModule:
    """Fold once; adds variables whose values cannot be computed to ``unknown``."""
    graph = ConstantGraph(mod, unknown)
    stored = choose_stored(graph.nodes)
    needed = _needed(graph.nodes, stored)
    failed = {n for n in graph.nodes if n in needed and n.const is None and not graph.evaluate(n)}

    def fold(_value: Any, scope: Scope) -> Any:
        node = graph.of.get(hash(scope.target))
        if node in failed:
            unknown[hash(scope.target)] = scope.target
        return None if node is None or node not in stored else node.const

    return rewrite(mod, fold) if any(node.call is not None for node in stored) else mod


def _needed(nodes: list[Node], stored: set[Node]) -> set[Node]:
    """List the operators to evaluate: those that are stored, and what they are computed from."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if node in stored or any(reader in found for reader in node.readers):
            found.add(node)
    return found
