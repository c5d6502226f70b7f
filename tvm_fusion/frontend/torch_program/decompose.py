"""Decompose an exported program into operators that have a converter."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops import effects
from torch.utils import _pytree as pytree

from ...core.decisions import Decision, record
from ...errors import UserError
from ..quiet import quiet_importer
from ..torch_ops import reason_of, unsupported
from . import attention
from .half_decompositions import in_float32

_MEAN, _SUM = 1, 2  # of at::Reduction


def multilabel_margin_loss(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    """Decompose ``aten.multilabel_margin_loss_forward``; arguments are torch's.

    Torch's decomposition counts the margins of the classes behind a row's first -1 as well.
    """
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    size = rows.shape[1]
    places = torch.arange(size, device=x.device)
    ends = torch.where(labels == -1, places, size).amin(1, keepdim=True)
    is_listed = places < ends
    listed = torch.where(is_listed, labels, -1)
    is_target = (listed.unsqueeze(2) == places).any(1)
    of_target = torch.gather(rows, 1, torch.where(is_listed, labels, 0))
    margins = (1 - of_target.unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0) / size
    counted = is_listed.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, margins, 0).sum((1, 2))
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction == _SUM:
        loss = loss.sum()
    elif x.dim() < 2:
        loss = loss.reshape(())
    return loss, is_target.to(x.dtype).reshape(target.shape)


DECOMPOSITIONS = {torch.ops.aten.multilabel_margin_loss_forward.default: multilabel_margin_loss}


# Torch would unroll these over time.
KEPT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# A decomposition may bring operators that themselves have one.
_ROUNDS = 6
_CHECK = "aten::_linalg_check_errors"


def decompose(program: torch.export.ExportedProgram, source: str) -> torch.export.ExportedProgram:
    """Decompose into core operators, and further where those are not all known.

    Parameters
    ----------
    source
        What to call it in errors.

    Returns
    -------
    torch.export.ExportedProgram
        One of operators that there are converters for, where torch knows how to get there.

    Raises
    ------
    UserError
        Where torch fails to decompose it.
    """
    program = _core(between_casts(program), source)
    tried: set[Any] = set()
    for _ in range(_ROUNDS):
        table = {
            target: torch._decomp.decomposition_table[target]
            for target in {node.target for node in calls(program) if unsupported(node)} - tried
            if target in torch._decomp.decomposition_table
        }
        if not table:
            break
        tried |= table.keys()
        table |= in_float32(table)
        try:
            with quiet_importer(), _without_checks():
                program = without_assertions(program.run_decompositions(table))
        except Exception as error:  # guard: recorded; what is left is refused by its name
            names = ", ".join(sorted(str(target) for target in table))
            sentence = f"torch could not decompose {names} ({reason_of(error)})."
            record(Decision(source, "", "refused", "decomposition_failed", sentence))
            break
    return program


def calls(program: torch.export.ExportedProgram) -> Iterator[fx.Node]:
    """Yield the nodes that call an operator, those of branches included."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


@contextmanager
def _without_checks() -> Iterator[None]:
    """Decompose linalg's checks of singular matrices into plain calls.

    As operators with effects torch would thread tokens through the program for them, as further
    inputs and outputs.
    """
    effects._register_effectful_op(_CHECK, None)
    try:
        yield
    finally:
        effects._register_effectful_op(_CHECK, effects._EffectType.ORDERED)


def _core(program: torch.export.ExportedProgram, source: str) -> torch.export.ExportedProgram:
    """Decompose into core operators; where torch fails to, with attention decomposed here."""
    try:
        with quiet_importer(), _without_checks():
            return without_assertions(program.run_decompositions(_table()))
    except Exception as error:  # guard: recorded below, or told as the refusal's reason
        reason = reason_of(error)
    table = _table()
    table[torch.ops.aten.scaled_dot_product_attention.default] = _attention
    try:
        with quiet_importer(), _without_checks():
            program = without_assertions(program.run_decompositions(table))
    except Exception as error:
        raise UserError(f"{source} cannot be decomposed by torch ({reason})") from error
    sentence = f"torch could not decompose attention ({reason}); it is decomposed here instead."
    record(Decision(source, "", "fallback", "attention_spelled_out", sentence))
    return program


def _table() -> Any:
    """Return torch's decompositions into core operators, without those of recurrent layers."""
    table = torch.export.default_decompositions()
    table.update(attention.DECOMPOSITIONS)
    table.update(DECOMPOSITIONS)
    for name in KEPT:
        table.pop(getattr(torch.ops.aten, name).input)
    table.pop(torch.ops.aten.roll.default)  # by tensors of indices; slices, joined, are movement
    for target, decomposition in in_float32(table).items():
        table[target] = decomposition
    # The root of a variance that vanishes, or overflows, though its root would not.
    table.pop(torch.ops.aten.std.correction)
    table[torch.ops.aten.std_mean.correction] = _std_mean
    return table


def _std_mean(
    x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Any, Any]:
    """Decompose ``aten.std_mean``; arguments are torch's."""
    return (
        torch.ops.aten.std.correction(x, dim, correction=correction, keepdim=keepdim),
        torch.ops.aten.mean.dim(x, dim, keepdim),
    )


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Decompose attention, with the strides of torch's CPU kernel.

    Torch's own decomposition leaves other strides than the kernel, and a ``view`` that follows then
    fails. Arguments as for ``torch.nn.functional.scaled_dot_product_attention``.
    """
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(repeats, 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    result = torch.ops.aten._safe_softmax(scores, -1) @ value
    return result.transpose(1, 2).contiguous().transpose(1, 2) if result.ndim == 4 else result


# Leave out what an exported program asserts of values, with what is computed for that alone.
_ASSERT = torch.ops.aten._assert_scalar.default
_COMPARISONS = (operator.ge, operator.gt, operator.le, operator.lt, operator.eq, operator.ne)
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def without_assertions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Drop the assertions about values in a program's graph, and say so.

    Models check their inputs (``torch._check_tensor_all``: as many image tokens as features), which
    reads values into Python's numbers and branches on them: operators that nothing else needs. What
    is asserted of extents alone stays; the signature has it.

    Parameters
    ----------
    program
        Changed in place, branches included.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            dropped = [node for node in module.graph.nodes if _is_about_a_value(node)]
            asserted = [(node.name, node.args[1:], _compared(node)) for node in dropped]
            for node in dropped:
                module.graph.erase_node(node)
            if dropped:
                named = set(_symbols_of_extents(module.graph))
                module.graph.eliminate_dead_code(partial(_stays, named))
                module.recompile()
            bound = set(_symbols(module.graph))
            for name, text, symbols in asserted:
                if not symbols or not symbols <= bound:
                    told = f" ({text[0]})" if text else ""
                    told = f"An assertion about a value{told} is not checked"
                    sentence = f"{told} when the program runs."
                    record(Decision(name, "", "refused", "assertion", sentence))
    return program


def _compared(node: fx.Node) -> set[Any]:
    """Return the symbols of numbers of extents that a node compares; none for any other test.

    Where they are read, that is checked.
    """
    test = node.args[0]
    if not isinstance(test, fx.Node) or test.target not in _COMPARISONS:
        return set()
    sides = [side.meta.get("val") if isinstance(side, fx.Node) else side for side in test.args]
    if not all(isinstance(side, int | torch.SymInt) for side in sides):
        return set()
    numbers = [side.node for side in sides if isinstance(side, torch.SymInt)]
    symbols = {symbol for number in numbers for symbol in number.expr.free_symbols}
    may_be_extents = all(numbers[0].shape_env.bound_sympy(s).lower >= 0 for s in symbols)
    return symbols if may_be_extents else set()


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


def _symbols(graph: fx.Graph) -> Iterator[Any]:
    """Yield the symbols in the shapes of all tensors, and in all numbers."""
    yield from _symbols_of_extents(graph)
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), torch.SymInt):
            yield from node.meta["val"].node.expr.free_symbols


# Compute functions that torch composes in Python over half types in float32, rounded once.
#
# Export leaves their operators, each of which rounds to the half type, and names the function that
# they come from: see :mod:`..half.intermediates`.
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
