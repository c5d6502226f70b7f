"""The rewriting stage: simplifications of TVM's, and what rules make cheaper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import GenericConst
from tvm.ir.transform import Pass, PassContext
from tvm.target import Target

from ..config import FusionConfig
from ..core.decisions import Decision, record
from ..core.flags import REASSOCIATE, Search
from ..core.names.inherit import inheriting
from ..core.progress import report
from ..core.untouched import is_rewritable, on_rewritable
from ..frontend.normalize.constants.fold import FoldConstants
from ..frontend.normalize.expand import ExpandBatchNorm
from ..frontend.normalize.extents.read import ReadExtents
from ..frontend.normalize.scatter_rows import ScatterRows
from ..fusion.claims import remembering
from . import rules
from .bytes.products import ByteProducts
from .bytes.rounded_activations import RoundedActivations
from .norms.statistics import NormStatistics
from .parts.unread_parts import SkipUnreadParts
from .products.batch_matmuls import BatchMatmuls
from .products.join_matmuls import JoinMatmuls
from .products.transposed_phases import TransposedConvByPhases
from .products.weight_layout import TransposeWeights
from .recompose.attention.attention import Attention
from .recompose.recompose import Recompose
from .search.dnnfusion_search import GreedyEquivalents
from .search.judge import Choose, Judge, always
from .search.search import SearchEquivalents
from .search.whole import Whole

_LARGE = 1 << 16  # bytes of a constant that is laid aside
SEARCHES = ("recomposition", "search")  # steps that ask a planner themselves


@tvm.transform.module_pass(opt_level=0, name="Rewrite")
class Rewrite:
    """Turn a graph into a cheaper equivalent one.

    Inference forms of batch norm and dropout, no aliases, no expression computed twice, nothing
    computed that no output needs; then what is algebra: products of quantised tensors as products
    of bytes, operators in the place of what exporters wrote out, nothing of them that no one reads,
    equal forms that are cheaper, matrix products of one left operand joined, independent ones
    batched, transposed convolutions by phases on CPUs, weights of narrow types in the order of
    tensor cores, and norms between two products as factors of rows.

    Parameters
    ----------
    search : {"search", "greedy", "none"}
        How equal forms are found; "none" leaves all algebra out.
    allow : collection of str
        Flags of laws outside floating point's promise:
        :data:`tvm_fusion.core.flags.FLAGS`.
    without : collection of str
        Names of rules that may not be used.

    Raises
    ------
    UserError
        For a name that is none of the above.

    Examples
    --------
    >>> mod = module(lambda x: op.exp(op.negative(op.negative(x))) + relax.const(0.0), (8,))
    >>> with cpu:
    ...     calls(Rewrite()(mod)), len(calls(Rewrite(search="none")(mod)))
    (['relax.exp'], 4)
    """

    def __init__(
        self,
        search: Search = "search",
        allow: Collection[str] = (),
        without: Collection[str] = (),
    ) -> None:
        chosen = FusionConfig(rewrite=search, allow=allow, without=without)
        rules.check_names(chosen.without)
        self._options = chosen

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        with remembering():
            return self._rewritten(mod)

    def _rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        # What is stored depends on the target: FoldConstants of the import did not know it.
        inference = (ExpandBatchNorm(), ReadExtents(), relax.transform.DecomposeOpsForInference())
        mod = _on_rewritable(*inference, ScatterRows(), FoldConstants(), *_tidy())(mod)
        if self._options.rewrite == "none":
            return mod
        target = Target.current()
        if target is None:
            sentence = "There is no current target, so forms cannot be compared by cost."
            record(Decision("Rewrite", "", "refused", "no_target", sentence))
            steps = (make(always) for name, make in self._steps() if name not in SEARCHES)
            return _on_rewritable(*steps)(mod)
        judge = Judge(target)
        whole = Whole(mod, target)
        every = list(self._steps())
        for number, (name, make) in enumerate(every, 1):
            report(f"rewriting, step {number} of {len(every)} ({name.replace('_', ' ')})")
            is_slower = whole.step(name, map(_on_rewritable, judge.ways(make)))
            if name == "recomposition" and is_slower:
                whole.step(name, [_on_rewritable(self._without_attention())])
        return whole.mod

    def _without_attention(self) -> Pass:
        """Recompose the rest where all together made the plan slower.

        What attention costs over few keys need not decide about norms and activations.
        """
        return _tidied(Recompose({*self._options.without, Attention.name}, self._options.flags))

    def _steps(self) -> Iterator[tuple[str, Callable[[Choose], Pass]]]:
        """Yield steps, as what makes a pass that asks about every place; some ask nothing."""
        flags, without = self._options.flags, self._options.without
        found: dict[str, Callable[[Choose], Pass]] = {
            "byte_products": lambda _: ByteProducts(),
            "recomposition": lambda _: _tidied(Recompose(without, flags)),
            "unread_parts": lambda _: _tidied(SkipUnreadParts()),
            "search": lambda _: _tidied(self._search()),
            "transposed_phases": TransposedConvByPhases,
            "batch_matmuls": BatchMatmuls,
            "join_matmuls": lambda choose: JoinMatmuls(choose, enlarge=REASSOCIATE in flags),
            "weights_along_k": lambda _: TransposeWeights(),
            "norm_statistics": lambda _: NormStatistics(),
            "rounded_activations": lambda _: RoundedActivations(),
        }
        yield from ((name, make) for name, make in found.items() if name not in without)

    def _search(self) -> Pass:
        laws = rules.laws(self._options.flags, self._options.without)
        if self._options.rewrite == "greedy":
            return GreedyEquivalents(laws)
        return SearchEquivalents(laws)


def _tidied(step: Pass) -> Pass:
    """Clean up behind a step that changes something."""

    @tvm.transform.module_pass(opt_level=0, name=step.info.name)
    def run(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        found = step(mod)
        is_same = all(func.same_as(found[gvar]) for gvar, func in mod.functions.items())
        return found if is_same else _on_rewritable(FoldConstants(), *_tidy())(found)

    return run


def _tidy() -> list[Pass]:
    return [
        relax.transform.CanonicalizeBindings(),
        CommonSubexpr(),
        relax.transform.DeadCodeElimination(),
    ]


def _on_rewritable(*passes: Pass) -> Pass:
    """Run passes over the rewritable functions; what they write is named as what it replaces."""
    return on_rewritable(*inheriting(*passes))


# Eliminate common subexpressions, without hashing all weights where there is none.
#
# TVM's pass compares constants by their elements: 0.45 s for the weights of BERT, per run. Two
# bindings can be equal only if they have the same operator, operands and attributes, which is seen
# without a look at all elements of a constant.
_SAMPLE = 16  # elements of a constant in the key that finds equal ones


@tvm.transform.module_pass(opt_level=0, name="CommonSubexpr")
class CommonSubexpr:
    """Run TVM's EliminateCommonSubexpr where two bindings may be equal."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Leave a module as it is where all bindings differ."""
        functions = [f for f in mod.functions.values() if is_rewritable(f)]
        if all(map(_all_differ, functions)):
            return mod
        return _with_constants_aside(mod, relax.transform.EliminateCommonSubexpr())


def _all_differ(func: relax.Function) -> bool:
    """Whether no two bindings look alike; False where a value holds bindings of its own."""
    seen: set[Hashable] = set()
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If | relax.SeqExpr | relax.Function):
                return False
            outline = _outline(value)
            if outline in seen:
                return False
            seen.add(outline)
    return True


def _outline(value: ir.Expr) -> Hashable:
    """Return a hash key of a value: equal for equal values, perhaps for different ones, too."""
    if isinstance(value, relax.Call):
        attrs = None if value.attrs is None else tvm_ffi.structural_hash(value.attrs)
        return _operand(value.op), attrs, *map(_operand, value.args)
    if isinstance(value, relax.TupleGetItem):
        return _operand(value.tuple_value), value.index
    return _operand(value)


def _operand(expr: ir.Expr) -> Hashable:
    if isinstance(expr, relax.Var | ir.GlobalVar | ir.Op):
        return hash(expr)
    if isinstance(expr, relax.Tuple):
        return tuple(map(_operand, expr.fields))
    if isinstance(expr, tirx.IntImm | tirx.FloatImm | ir.StringImm):
        return expr.value
    if isinstance(expr, GenericConst):
        return str(expr.ty), _sample(expr)
    return type(expr).__name__


def _sample(const: GenericConst) -> bytes:
    """Read some of a constant's elements; a constant may be a type, too."""
    if not hasattr(const.value, "__dlpack__"):
        return str(const.value).encode()
    try:
        elements = np.from_dlpack(const.value).reshape(-1)
    except (BufferError, RuntimeError):  # types that numpy lacks
        return b""
    return elements[:: elements.size // _SAMPLE + 1].tobytes()


def _with_constants_aside(mod: tvm.IRModule, apply: ir.transform.Pass) -> tvm.IRModule:
    """Apply a pass of TVM's that would hash all elements of large constants.

    They are parameters meanwhile, but for those of equal elements: the pass may find expressions of
    them equal.

        f(x) = x @ W1 + x @ W2   ->   f(x, w1, w2) = x @ w1 + x @ w2   ->   pass   ->   as before

    Parameters
    ----------
    apply
        Neither adds nor removes parameters, nor asks for the elements of constants but to compare
        them.

    Returns
    -------
    tvm.IRModule
        With the very same constants.
    """
    before, aside = mod.clone(), dict[ir.GlobalVar, dict[relax.Var, GenericConst]]()
    for gvar, func in mod.functions.items():
        found = _large_constants(func) if is_rewritable(func) else {}
        if found:
            aside[gvar] = {var: const for const, var in found.items()}
            body = _replaced(func.body, GenericConst, lambda c, known=found: known.get(c, c))
            before.update_func(gvar, _with(func, [*func.params, *found.values()], body))
    after = apply(before)
    for gvar, constants in aside.items():
        func = after[gvar]
        body = _replaced(func.body, relax.Var, lambda v, known=constants: known.get(v, v))
        after.update_func(gvar, _with(func, list(func.params)[: -len(constants)], body))
    return after


def _with(func: relax.Function, params: list[relax.Var], body: relax.Expr) -> relax.Function:
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def _replaced(body: relax.Expr, kind: type, change: Callable[..., relax.Expr]) -> relax.Expr:
    return tvm_ffi.structural_map(body, (kind, change), order="post")


def _large_constants(func: relax.Function) -> dict[GenericConst, relax.Var]:
    """List large constants that equal no other one, with variables of their types."""
    seen: dict[GenericConst, None] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst) and hasattr(expr.value, "__dlpack__"):
            seen.setdefault(expr)

    relax.analysis.post_order_visit(func.body, visit)
    alike: dict[Hashable, list[tuple[GenericConst, np.ndarray]]] = {}
    for const in seen:
        try:
            elements = np.from_dlpack(const.value)
        except (BufferError, RuntimeError):  # types that numpy lacks
            continue
        if elements.nbytes >= _LARGE:
            flat = elements.reshape(-1).view(np.uint8)
            sample = str(const.ty), flat[:: flat.size // 256 | 1].tobytes()
            alike.setdefault(sample, []).append((const, flat))
    lone = [
        const
        for group in alike.values()
        for const, flat in group
        if not any(o is not flat and np.array_equal(o, flat) for _, o in group)
    ]
    return {const: relax.Var(f"constant{i}", const.ty) for i, const in enumerate(lone)}
