"""Rewrite Relax functions one binding at a time: the base of all passes here."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...core.decisions import record, recording
from ...core.untouched import is_rewritable

_names: dict[tvm.ir.Op, str] = {}  # asked for far more often than there are operators

#: A rule takes a value whose operands are rewritten already, and returns its replacement or None.
Rule = Callable[[Any, "Scope"], Any]


class Scope:
    """What a rule may ask about the function that it rewrites.

    Parameters
    ----------
    func : tvm.relax.Function
        The function before the rewrite.
    builder : tvm.relax.BlockBuilder
        Takes what a rule emits.

    Attributes
    ----------
    func : tvm.relax.Function
        The function before the rewrite.
    target : tvm.relax.Var
        What the binding that is being rewritten defines, before the rewrite.
    """

    target: relax.Var

    def __init__(self, func: relax.Function, builder: relax.BlockBuilder):
        self.func = func
        self._builder = builder
        self._values: dict[int, Any] = {}
        self._old: dict[int, int] = {}

    def value(self, expr: Any) -> Any:
        """Return what a variable is bound to (after the rewrite), or anything else as it is."""
        return self._values.get(hash(expr), expr)

    def call(self, expr: Any, *names: str) -> relax.Call | None:
        """Return the call behind ``expr`` if it is one of the operators ``names``."""
        value = self.value(expr)
        return value if op_name(value) in names else None

    def uses(self, expr: Any) -> int:
        """Count the uses of a variable or constant in the function before the rewrite."""
        return self._counted[0][self._old.get(hash(expr), hash(expr))]

    def is_cast(self, var: relax.Var) -> bool:
        """Whether a match_cast gives a variable its type."""
        return hash(var) in self._counted[1]

    def emit(self, expr: Any) -> relax.Var:
        """Bind an expression to a new variable before the binding that is being rewritten."""
        var = self._builder.emit(expr)
        self._values[hash(var)] = self._builder.lookup_binding(var)
        return var

    def match_cast(self, expr: Any, ty: Any) -> relax.Var:
        """Bind an expression to a new variable of a type that is checked when the model runs."""
        return self._builder.match_cast(expr, ty)

    def bind(self, old: relax.Var, new: relax.Var, value: Any) -> None:
        """Remember what a variable is bound to, and that ``new`` stands for ``old``."""
        self._values[hash(new)] = value
        if not new.same_as(old):
            self._old[hash(new)] = hash(old)

    @functools.cached_property
    def _counted(self) -> tuple[Counter[int], set[int]]:
        """Uses of variables and constants, and what a match_cast gives a type; few rules ask."""
        uses: Counter[int] = Counter()
        cast: set[int] = set()

        def count(expr: Any) -> None:
            if isinstance(expr, relax.Call):
                operands = list(expr.args)
            elif isinstance(expr, relax.Tuple):
                operands = list(expr.fields)
            elif isinstance(expr, relax.TupleGetItem):
                operands = [expr.tuple_value]
            elif isinstance(expr, relax.SeqExpr):
                operands = [expr.body]
                bindings = [b for block in expr.blocks for b in block.bindings]
                cast.update(hash(b.value) for b in bindings if isinstance(b, relax.MatchCast))
            elif isinstance(expr, relax.If):
                operands = [expr.cond]
            else:
                return
            uses.update(hash(x) for x in operands if isinstance(x, (relax.Var, GenericConst)))

        # The visit reaches each use of a leaf.
        relax.analysis.post_order_visit(self.func.body, count)
        return uses, cast


def op_name(expr: Any) -> str:
    """Return the operator's name if ``expr`` is a call of one, else an empty string."""
    if not isinstance(expr, relax.Call):
        return ""
    op = expr.op
    name = _names.get(op) if isinstance(op, tvm.ir.Op) else ""
    if name is None:
        name = _names[op] = str(op.name)
    return name


def rewrite(mod: tvm.IRModule, rule: Rule) -> tvm.IRModule:
    """Apply a rule to every binding of our functions, then drop what nothing uses any more.

    Parameters
    ----------
    rule
        See :data:`Rule`. A replacement that is a constant, a variable or a shape takes the
        binding's place at all its uses.

    Returns
    -------
    tvm.IRModule
        The same object if no rule applied.
    """
    result = mod
    for gvar, func in mod.functions.items():
        if not is_rewritable(func) or not _applies(func, rule):
            continue
        rewriter = _Rewriter(mod, func, rule)
        new = rewriter.visit_expr(func)
        if rewriter.changed:
            if result is mod:
                result = mod.clone()
            result[gvar] = relax.analysis.remove_all_unused(new)
    return result


class _Emits(Exception):
    """A rule wants to emit something, for which a function has to be written."""


class _Trial(Scope):
    """The scope of a function that is only looked at."""

    def __init__(self, func: relax.Function) -> None:
        super().__init__(func, None)

    def emit(self, expr: Any) -> relax.Var:
        raise _Emits

    def match_cast(self, expr: Any, ty: Any) -> relax.Var:
        raise _Emits


def _applies(func: relax.Function, rule: Rule) -> bool:
    """Whether a rule may change a function: most do not, and looking is faster than writing."""
    if not isinstance(func.body, relax.SeqExpr):
        return True
    trial = _Trial(func)
    with recording() as decisions:
        for block in func.body.blocks:
            for binding in block.bindings:
                value, is_cast = binding.value, isinstance(binding, relax.MatchCast)
                if isinstance(value, relax.If | relax.Function | relax.SeqExpr):
                    return True
                if is_cast and not isinstance(value, relax.Call):
                    continue
                trial.target = binding.var
                try:
                    if rule(value, trial) is not None:
                        return True
                except _Emits:
                    return True
                if not is_cast:
                    trial.bind(binding.var, binding.var, value)
    for decision in decisions:
        record(decision)
    return False


def rewrite_pass(rule: Rule) -> Callable[[], tvm.transform.Pass]:
    """Make a module pass, by the rule's name, that applies the rule to every function of ours."""

    @functools.wraps(rule, updated=())
    def make() -> tvm.transform.Pass:
        return tvm.transform.module_pass(
            lambda mod, _: rewrite(mod, rule), opt_level=0, name=rule.__name__
        )

    del make.__wrapped__  # its parameters are not the pass's
    return make


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function, rule: Rule):
        super().__init__(mod)
        self.scope = Scope(func, self.builder_)
        self.rule = rule
        self.changed = False
        self._replaced: dict[int, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = self.visit_expr(binding.value)
        self.scope.target = binding.var
        new = None if isinstance(value, relax.If) else self.rule(value, self.scope)
        self.changed |= new is not None
        new = value if new is None else new
        if isinstance(binding.var, relax.DataflowVar) and isinstance(
            new, (GenericConst, relax.Var, relax.ShapeExpr)
        ):
            self._replaced[hash(binding.var)] = new
            return
        if new.same_as(binding.value):
            self.builder_.emit_normalized(binding)
            self.scope.bind(binding.var, binding.var, new)
            return
        new = self.builder_.normalize(new)
        var = self.with_type(binding.var, new.ty)
        self.builder_.emit_normalized(relax.VarBinding(var, new))
        if not var.same_as(binding.var):
            self.set_var_remap(binding.var, var)
        self.scope.bind(binding.var, var, new)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Rewrite a call whose result a match_cast gives a type; it becomes a binding before."""
        if isinstance(binding.value, relax.Call):
            value = self.visit_expr(binding.value)
            self.scope.target = binding.var
            new = self.rule(value, self.scope)
            if new is not None:
                self.changed = True
                binding = relax.MatchCast(binding.var, self.scope.emit(new), binding.ty)
        super().visit_match_cast_(binding)

    def visit_var_(self, op: relax.Var) -> Any:
        replaced = self._replaced.get(hash(op))
        return super().visit_var_(op) if replaced is None else replaced

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> Any:
        replaced = self._replaced.get(hash(op))
        return super().visit_dataflow_var_(op) if replaced is None else replaced
