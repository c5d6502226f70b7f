"""The pass that puts operators back where exporters wrote them out."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import tvm
from tvm import relax
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...core.current_target import current_target
from ...core.decisions import Decision, record
from ...core.flags import REASSOCIATE
from ...core.names.source import names_of, sources_of
from ...core.untouched import is_lowered, is_rewritable
from ..egraph.changes import Change, Gain, note, note_uses
from ..egraph.saturate import Use
from ..nonfinite import NONE, NonFinite, words
from ..readers import Readers
from .matching.view import View, op_name
from .pattern import Match, Mismatch, Pattern, Writer
from .patterns import patterns
from .price import Price, Pricer


@tvm.transform.module_pass(opt_level=0, name="Recompose")
class Recompose:
    """Replace written-out softmax, norms, activations and attention by what they are.

    ``exp(x - max(x)) / sum(exp(x - max(x))) = softmax(x)``, and so on: see each
    pattern's equation. An operator is taken where templates of the target claim it and the planner
    does not find it costlier than its written-out form; otherwise that stays. Either is recorded.

    Parameters
    ----------
    without : collection of str
        Names of patterns that are switched off.
    allow : collection of str
        Flags, of :data:`tvm_fusion.core.flags.FLAGS`.

    Raises
    ------
    UserError
        If there is no current target.

    Examples
    --------
    >>> def softmax(x):
    ...     shifted = op.exp(x - op.max(x, axis=[1], keepdims=True))
    ...     return shifted / op.sum(shifted, axis=[1], keepdims=True)
    >>> mod = module(softmax, (8, 16))
    >>> with cpu:
    ...     calls(Recompose()(mod)), calls(Recompose(without=["softmax"])(mod)) == calls(mod)
    (['relax.nn.softmax'], True)
    """

    def __init__(self, without: Collection[str] = (), allow: Collection[str] = ()) -> None:
        self._patterns = patterns(without)
        self._allow = tuple(allow)

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function."""
        pricer, readers = Pricer(current_target("Recompose")), Readers(mod)
        result = mod
        for gvar, func in mod.functions.items():
            if not is_rewritable(func) or is_lowered(func):
                continue
            new, view = func, View(func)
            for pattern in self._patterns:
                view = view if view.func.same_as(new) else View(new)
                new = recompose(
                    mod, new, pattern, pricer, self._allow, gvar.name_hint, view, readers
                )
            if new is not func:
                result = mod.clone() if result is mod else result
                result.update_func(gvar, new)
        return result


def recompose(
    mod: tvm.IRModule,
    func: relax.Function,
    pattern: Pattern,
    pricer: Pricer,
    allow: Collection[str] = (),
    name: str = "main",
    view: View | None = None,
    readers: Readers | None = None,
) -> relax.Function:
    """Replace what is written out of one pattern.

    Parameters
    ----------
    pricer
        Asked about everything that is found.
    name
        Of the function in the module.
    view
        Of the function: what one pattern has found out serves the next.

    Returns
    -------
    relax.Function
        The same object if nothing was replaced.
    """
    view = View(func) if view is None else view
    names = view.once("names", partial(_operators, view))
    if not names & pattern.anchors or not names & pattern.roots:
        return func
    taken: dict[int, Match] = {}
    readers = readers or Readers(mod)
    use = Use()
    dead: set[int] = set()
    mismatches: dict[int, Mismatch] = {}
    for binding in view.backwards():
        root = binding.var
        if op_name(binding.value) not in pattern.roots or hash(root) in dead:
            continue
        found = pattern.match(view, root)
        if isinstance(found, Mismatch):
            mismatches.setdefault(hash(found.at), found)
            use.tried += 1
        if not isinstance(found, Match):
            continue
        use.tried += 1
        told = NONE if REASSOCIATE in allow else readers.of(name, func).get(hash(root), NONE)
        refused = _not_equal(pattern, root, found, allow, told)
        if refused is not None:
            record(refused)
            use.refused[refused.sentence] += 1
            continue
        price = pricer.price(pattern, view, root, found)
        if found.parts is not None and price is not None and not price.is_claimed:
            parts = replace(found, build=found.parts, what=f"{found.what}, in kernels of its parts")
            other = pricer.price(pattern, view, root, parts, template="")
            if other is not None and other.is_claimed and not other.is_more_expensive:
                found, price = parts, other
        if price is None or not price.is_claimed or price.is_more_expensive:
            refused = _refused(pattern, root, price)
            record(refused)
            use.refused[refused.sentence] += 1
            if price is not None and not price.is_claimed:
                _mark_dead(view, root, found, dead)  # nor is a part of it
            continue
        if not price.is_same:
            taken[hash(root)] = found
            use.fired += 1
            note(_change(func, pattern, root, price))
        _mark_dead(view, root, found, dead)
        record(_accepted(pattern, root, price, found))
    for at, mismatch in mismatches.items():
        if at not in dead:
            sentence = f"It does not match {pattern.name}: {mismatch.reason}."
            use.refused[sentence] += 1
            record(
                Decision(mismatch.at.name, pattern.name, "refused", "no_such_operator", sentence)
            )
    if use.tried:
        note_uses({pattern.name: use})
    if not taken:
        return func
    return relax.analysis.remove_all_unused(_Rewriter(mod, taken).visit_expr(func))


def _operators(view: View) -> set[str]:
    return {op_name(binding.value) for binding in view.bindings}


def _not_equal(
    pattern: Pattern, root: relax.Var, found: Match, allow: Collection[str], told: NonFinite
) -> Decision | None:
    """Say where the operator is finite and what was written out is not, or the other way round."""
    seen = found.changes & told
    if found.needs and found.needs not in allow:
        why = (
            f"its parts may overflow where the operator does not; --allow {found.needs} permits it"
        )
    elif seen:
        why = f"the model tests for {words(seen)} here, which the operator may not produce"
    else:
        return None
    sentence = f"The operators stay, although they form one {pattern.name}: {why}."
    return Decision(root.name, pattern.name, "refused", "told_apart", sentence)


def _mark_dead(view: View, root: relax.Var, found: Match, dead: set[int]) -> None:
    """Mark variables that only the match or dead variables read: no pattern is matched at them."""
    for binding in reversed(view.between(root, found.leaves)):
        readers = view.readers(binding.var)
        if hash(binding.var) == hash(root) or all(reader in dead for reader in readers):
            dead.add(hash(binding.var))


def _change(func: relax.Function, pattern: Pattern, root: relax.Var, price: Price) -> Change:
    before, after = price.before, price.after
    gain = Gain.between(before, after)
    name = str(func.attrs.get("global_symbol", "")) if func.attrs else ""
    names = names_of(sources_of(root))
    return Change(name, root.name, (pattern.name,), *equation(pattern), gain, names=names)


def equation(pattern: Pattern) -> tuple[str, str]:
    """Return both sides of a pattern's equation, which is the first thing of its docstring."""
    text = " ".join((pattern.__doc__ or "").split("``")[1].split())
    before, _, after = text.rpartition(" = ")
    return before, after


def _accepted(pattern: Pattern, root: relax.Var, price: Price, found: Match) -> Decision:
    before, after = price.before, price.after
    what = f" ({found.what})" if found.what else ""
    code = "recognised" if price.is_same else "recomposed"
    return Decision(
        root.name,
        pattern.name,
        "accepted",
        code,
        f"{before.operators} operators form one {pattern.name}{what}:"
        f" {before.us:.1f} to {after.us:.1f} us.",
        bytes_saved=before.bytes - after.bytes,
        producer_names=names_of(sources_of(root)),
    )


def _refused(pattern: Pattern, root: relax.Var, price: Price | None) -> Decision:
    if price is None:
        code, sentence = "not_planned", "a shape that is computed is read in between"
    elif not price.is_claimed:
        why = f". {price.refusal.removesuffix('.')}" if price.refusal else ""
        code, sentence = "no_template", f"no template of the target has kernels for it{why}"
    else:
        before, after = price.before, price.after
        code = "more_expensive"
        sentence = (
            f"{after.us:.1f} us in {after.kernels} kernels instead of"
            f" {before.us:.1f} us in {before.kernels}"
        )
    sentence = f"The operators stay, although they form one {pattern.name}: {sentence}."
    names = names_of(sources_of(root))
    return Decision(root.name, pattern.name, "refused", code, sentence, producer_names=names)


@mutator
class _Rewriter(PyExprMutator):
    """Writes operators where their roots are bound."""

    def __init__(self, mod: tvm.IRModule, taken: dict[int, Match]) -> None:
        super().__init__(mod)
        self._taken = taken

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        found = self._taken.get(hash(binding.var))
        if found is None:
            super().visit_var_binding_(binding)
            return
        value = found.build(Writer(self.builder_), *map(self.visit_expr, found.leaves))
        if isinstance(value, relax.DataflowVar) and isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, value)
            return
        bound = self.builder_.lookup_binding(value)  # no alias where a call can stand
        value = value if bound is None else bound
        self.builder_.emit_normalized(relax.VarBinding(binding.var, value))
