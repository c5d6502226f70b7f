"""Storage in half precision with float32 where it matters, as one pass on Relax.

TVM's ``ToMixedPrecision`` knows float16 only, leaves softmax, norms and reductions in it, and turns
masks of large negative numbers into infinities.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from ...core.untouched import is_rewritable
from ...errors import UserError
from ..normalize.engine import op_name
from ..tensor_types import dtype_of
from .casts import FULL, Casts, Value
from .operator_precision import (
    ARITHMETIC,
    COMPARISONS,
    ELEMENTWISE,
    REDUCTIONS,
    SHAPED_LIKE,
    Precision,
    is_residual,
    leaves,
    precision_of,
    readers,
)

# Values whose readers meet again: an activation function in parts, such as ``x * sigmoid(x)``.
#
# One kernel computes all of it, so a value in between is in registers, and rounding it to a half
# type would cost digits and save no bytes.


_MOST = 16  # operators of an activation function


def meeting_values(func: relax.Function) -> set[int]:
    """Find values that elementwise operators alone read, until one value is left of them.

    Returns
    -------
    set of int
        Hashes of the variables.
    """
    found: set[int] = set()
    for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else ():
        reads = [set(map(hash, relax.analysis.free_vars(b.value))) for b in block.bindings]
        names = [op_name(b.value) for b in block.bindings]
        made = [hash(b.var) for b in block.bindings]
        readers: dict[int, list[int]] = {}
        for place, read in enumerate(reads):
            for key in read:
                readers.setdefault(key, []).append(place)
        for key in made:
            if len(readers.get(key, ())) > 1 and _meets(key, readers, names, made):
                found.add(key)
    return found


def _meets(
    start: int, readers: dict[int, list[int]], names: Sequence[str | None], made: Sequence[int]
) -> bool:
    """Follow a value through its readers, in the order of the program."""
    waiting = set(readers[start])
    for _ in range(_MOST):
        place = min(waiting)
        if names[place] not in ELEMENTWISE:
            return False
        waiting.remove(place)
        if not waiting:
            return True
        waiting.update(readers.get(made[place], (len(names),)))
        if max(waiting) == len(names):  # one that nobody reads here: it is a result
            return False
    return False


_STORAGE = {"fp16": "float16", "bf16": "bfloat16"}


@tvm.transform.module_pass(opt_level=0, name="ToHalfPrecision")
class ToHalfPrecision:
    """Store weights and activations in a half type; accumulate, normalise and take exp in float32.

    * Matrix products and convolutions read half operands and sum in float32.
    * Reductions, norms, softmax and functions like exp compute in float32.
    * Cheap elementwise operators and views stay in float32 between two operators that compute in
      it, as long as the value has one reader, so that a fused kernel rounds once, where it stores.
    * A value with several readers is rounded where it is made, unless all of them want float32, or
      meet again in an activation function, or it is a residual stream that is to stay so.
    * What comes from integers alone (positions, timesteps) stays in float32: bfloat16 cannot count
      beyond 256.
    * Constants that would overflow become the largest finite number, so that masks stay masks.

    Parameters
    ----------
    precision : {"fp16", "bf16"}
        The half type.
    half_io : bool
        Let float32 parameters and results of public functions become half too.
    wide_residuals : bool
        Keep what norms read or made and sums go on with in float32, and rows of embeddings that
        rounding would change; compute sums, differences, products and quotients in float32.

    Raises
    ------
    UserError
        For another precision.

    Examples
    --------
    >>> mod = module(lambda x: op.nn.softmax(op.matmul(x, weight(16, 4))), (8, 16))
    >>> half = ToHalfPrecision("fp16")(mod)
    >>> [str(b.value.ty.dtype) for b in half["main"].body.blocks[0].bindings]
    ['float16', 'float32', 'float32']
    """

    def __init__(self, precision: str, half_io: bool = False, wide_residuals: bool = False):
        if precision not in _STORAGE:
            raise UserError(f"precision {precision!r}", f"one of {', '.join(_STORAGE)}")
        self.half = _STORAGE[precision]
        self.half_io, self.wide_residuals = half_io, wide_residuals

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function."""
        result = mod.clone()
        for gvar, func in mod.functions.items():
            if not is_rewritable(func):
                continue
            public = bool(func.attrs) and "global_symbol" in func.attrs
            half_io = self.half_io and public
            result[gvar] = to_half_precision(mod, func, self.half, half_io, self.wide_residuals)
        return result


# Rewrite one function to half precision, for :class:`.precision.ToHalfPrecision`.
def to_half_precision(
    mod: tvm.IRModule, func: relax.Function, half: str, half_io: bool, wide_residuals: bool = False
) -> relax.Function:
    """Rewrite one function.

    Parameters
    ----------
    mod
        The module it is part of.
    half_io
        Whether float32 parameters and results become half.
    wide_residuals
        Whether residual streams stay in float32.
    """
    new = _Rewriter(mod, func, half, half_io, wide_residuals).visit_expr(func)
    if half_io:  # the result's type is to be found again
        new = relax.Function(new.params, new.body, None, new.is_pure, new.attrs)
    return relax.analysis.remove_all_unused(new)


@mutator
class _Rewriter(PyExprMutator):
    def __init__(
        self, mod: tvm.IRModule, func: relax.Function, half: str, half_io: bool, wide: bool
    ):
        super().__init__(mod)
        self.half, self.half_io, self.wide_residuals = half, half_io, wide
        self.values: dict[int, Value] = {}
        self.casts, self.blocks = Casts(self.builder_, half), 0
        self.params = {hash(param) for param in func.params}
        result = func.body.body
        leaves = result.fields if isinstance(result, relax.Tuple) else [result]
        self.results = {hash(leaf) for leaf in leaves}
        self.readers, self.meeting = readers(func), meeting_values(func)

    # Structure: blocks, variables, tuples. Whoever is not known gets the types of the model.

    def visit_var_def_(self, var: Any) -> Any:
        if self.half_io and hash(var) in self.params and dtype_of(var) == FULL:
            return relax.Var(var.name, relax.TensorType(var.ty.shape, self.half))
        return var  # TVM's own would visit types, which stay, and calls this again for a match_cast

    def visit_binding_block_(self, block: Any) -> Any:
        return self._in_block(super().visit_binding_block_, block)

    def visit_dataflow_block_(self, block: Any) -> Any:
        return self._in_block(super().visit_dataflow_block_, block)

    def visit_var_(self, op: Any) -> Any:
        return self._variable(op, super().visit_var_)

    def visit_dataflow_var_(self, op: Any) -> Any:
        return self._variable(op, super().visit_dataflow_var_)

    def visit_var_binding_(self, binding: Any) -> None:
        value, var = binding.value, binding.var
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
            new = self._call(value)
        elif isinstance(value, relax.TupleGetItem):
            source = self.values.get(hash(value.tuple_value))
            item = self.visit_expr(value) if source is None else source.expr[value.index]
            new = Value(item)
        elif isinstance(value, relax.Tuple):
            kind = self._result_dtype if hash(var) in self.results else dtype_of
            new = Value(relax.Tuple([self._operand(f, kind(f)) for f in value.fields]))
        else:
            super().visit_var_binding_(binding)
            return
        if not isinstance(var, relax.DataflowVar):
            self._leave_block(var, new)
            return
        new.expr = self._bound(new.expr, var.name)
        if self._is_stored(binding, new):
            new.expr = self.casts.cast(new, self.half)
        self.values[hash(var)] = new

    def _leave_block(self, var: Any, new: Value) -> None:
        """Bind a variable that is seen outside of its block, in the type that is expected there."""
        wanted = self._result_dtype(var) if hash(var) in self.results else dtype_of(var)
        expr = self.builder_.normalize(new.expr)
        if self._floating(var) and dtype_of(expr) != wanted:
            expr = self.builder_.normalize(relax.op.astype(self._bound(expr), wanted))
        bound = relax.Var(var.name, expr.ty)
        self.builder_.emit_normalized(relax.VarBinding(bound, expr))
        self.set_var_remap(var, bound)
        self.values[hash(var)] = Value(bound, new.from_integers, new.statistic)

    def _in_block(self, visit: Any, block: Any) -> Any:
        outer, self.blocks = self.casts.block, self.blocks + 1
        self.casts.block = self.blocks
        result = visit(block)
        self.casts.block = outer
        return result

    def _variable(self, var: Any, default: Any) -> Any:
        value = self.values.get(hash(var))
        if value is None:
            return default(var)
        if isinstance(var.ty, relax.TupleType):
            return self._tuple(var, value)
        if self.half_io and hash(var) in self.results:
            return value.expr
        return self.casts.cast(value, dtype_of(var)) if self._floating(var) else value.expr

    def _tuple(self, var: Any, value: Value) -> Any:
        """Cast a tuple's fields to the types of the model, where they differ."""
        if hash(var) in self.results or structural_equal(var.ty, value.expr.ty):
            return value.expr
        fields = []
        for i, ty in enumerate(var.ty.fields):
            field = self._bound(relax.TupleGetItem(value.expr, i))
            fields.append(self.casts.cast(Value(field), str(ty.dtype.dtype)))
        return relax.Tuple(fields)

    # Operators.

    def _call(self, call: Any) -> Value:
        floats = [leaf for leaf in leaves(call) if self._floating(leaf)]
        if op_name(call) in SHAPED_LIKE:
            floats = [arg for arg in call.args[1:] if self._floating(arg)]
        sources = [self._value(leaf) for leaf in floats if isinstance(leaf, relax.Var)]
        if op_name(call) == "relax.astype" and self._floating(call):
            # A cast of the model between its own float types: types are decided here.
            return Value(*_fields(sources[0])) if sources else self._keep(call, True)
        precision = precision_of(call)
        if precision is Precision.KEEP or not floats:
            return self._keep(call, not sources)
        if precision is Precision.ACCUMULATE and not self._floating(call):
            return self._keep(call, False)
        from_integers = bool(sources) and all(s.from_integers for s in sources)
        dtype = self._compute_dtype(precision, op_name(call), sources, from_integers)
        if self.wide_residuals and precision is Precision.MOVE and not sources:
            # Such as rows of embeddings, where residual streams begin. A table that is a product's
            # weight, too, is stored once.
            own = all(len(self.readers.get(hash(c), ())) == 1 for c in floats)
            dtype = FULL if own and any(map(self.casts.is_rounded, floats)) else self.half
        args = self._operands(call, dtype)
        attrs = call.attrs
        if precision is Precision.ACCUMULATE:
            attrs = _with_out_dtype(attrs, FULL)
        if precision is Precision.FOLLOW and not sources:
            from_integers = True
        statistic = op_name(call) in REDUCTIONS or (
            bool(sources) and all(s.statistic for s in sources)
        )
        return Value(relax.Call(call.op, args, attrs, call.ty_args), from_integers, statistic)

    def _compute_dtype(
        self, precision: Precision, name: str, sources: list[Value], from_integers: bool
    ) -> str:
        if precision is Precision.FLOAT32 or from_integers:
            return FULL
        if precision is Precision.FOLLOW:
            if self.wide_residuals and name in ARITHMETIC:
                return FULL  # a CPU adds half types in float32, too
            if any(dtype_of(s.expr) == FULL and not s.from_integers for s in sources):
                return FULL
            return self.half if sources else FULL
        return self.half

    def _keep(self, call: Any, from_integers: bool) -> Value:
        """Emit a call with the types of the model."""
        args = self._operands(call, None)
        return Value(relax.Call(call.op, args, call.attrs, call.ty_args), from_integers)

    def _is_stored(self, binding: Any, value: Value) -> bool:
        """Decide whether a float32 value is rounded here: several readers share its storage."""
        var = binding.var
        if not self._floating(var) or dtype_of(value.expr) != FULL:
            return False
        found = self.readers.get(hash(var), [])
        kinds = {reader.precision for reader in found}
        if self.wide_residuals:  # what a comparison reads takes part in no result
            kinds = {reader.precision for reader in found if reader.name not in COMPARISONS}
        in_full = kinds <= {Precision.FLOAT32, Precision.KEEP}
        is_kept = in_full or Precision.KEEP in kinds or value.from_integers or value.statistic
        is_kept |= hash(var) in self.meeting
        is_kept |= self.wide_residuals and is_residual(op_name(binding.value), found)
        return len(found) > 1 and not is_kept

    # Operands and casts.

    def _value(self, var: Any) -> Value:
        known = self.values.get(hash(var))
        if known is None:
            known = self.values[hash(var)] = Value(super().visit_expr(var))
        return known

    def _operands(self, call: Any, dtype: str | None) -> list[Any]:
        """Bring a call's operands into a type; a square keeps being one."""
        done: dict[int, Any] = {}
        for arg in call.args:
            if hash(arg) not in done:
                done[hash(arg)] = self._operand(arg, dtype)
        return [done[hash(arg)] for arg in call.args]

    def _operand(self, arg: Any, dtype: str | None) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._operand(field, dtype) for field in arg.fields])
        if isinstance(arg, GenericConst):
            return self.casts.constant(arg, dtype) if dtype and self._floating(arg) else arg
        if isinstance(arg, relax.Var) and self._floating(arg):
            return self.casts.cast(self._value(arg), dtype or dtype_of(arg))
        return self.visit_expr(arg)

    def _bound(self, expr: Any, name: str = "") -> Any:
        return expr if isinstance(expr, relax.Var) else self.builder_.emit(expr, name)

    def _floating(self, expr: Any) -> bool:
        return dtype_of(expr) in (FULL, self.half)

    def _result_dtype(self, expr: Any) -> str:
        return self.half if self.half_io and dtype_of(expr) == FULL else dtype_of(expr)


def _fields(value: Value) -> tuple[Any, bool, bool]:
    return value.expr, value.from_integers, value.statistic


def _with_out_dtype(attrs: Any, dtype: str) -> Any:
    """Copy an operator's attributes with another ``out_dtype``."""
    info = type(attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(attrs, field.name) for field in info.fields}
    return tvm.ir.make_node(info.type_key, **fields | {"out_dtype": dtype})
