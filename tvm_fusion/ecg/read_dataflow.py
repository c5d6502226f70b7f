"""Read the operators of a dataflow block, their operands and results.

A binding that only renames (an alias, a tuple, an item of one) is no operator; what is not a call
of a PrimFunc over SBlocks is an opaque one.
"""

import tvm
from tvm import ir, relax, tirx

from ..core.untouched import has_blocks, is_scheduled
from .operator import Operator, Value, flatten

#: Attribute of a Primitive function: positions of the parameters that stand for constants.
CONSTANTS = "tvm_fusion.constants"
#: Attribute of a Primitive function: closed forms of such parameters, by their position as text.
CLOSED_FORMS = "tvm_fusion.closed_forms"

_CALL_TIR = ir.Op.get("relax.call_tir")


class DataflowReader:
    """Operators and values of one dataflow block.

    Attributes
    ----------
    operators : list of Operator
        In the order of the bindings.
    values : dict of relax.Var to (Value or tuple)
        What each variable stands for; tuples are nested.
    extra : dict of Operator to list of Operator
        Those that give the symbolic variables of an operator, which come before it as well.
    """

    def __init__(self, mod: tvm.IRModule, func: relax.Function, block: relax.DataflowBlock) -> None:
        self._mod = mod
        self.operators: list[Operator] = []
        self.values: dict[relax.Var, Value | tuple] = {}
        self.extra: dict[Operator, list[Operator]] = {}
        self._constants: dict[ir.GenericConst, Value] = {}
        self._symbol_producers: dict[tirx.Var, Operator] = {}
        self._taken: dict[str, int] = {}  # names, and how many more operators asked for each
        weights_from = int(func.attrs["num_input"]) if _has(func, "num_input") else len(func.params)
        constants = {int(i) for i in func.attrs[CONSTANTS]} if _has(func, CONSTANTS) else set()
        forms = func.attrs[CLOSED_FORMS] if _has(func, CLOSED_FORMS) else {}
        for position, param in enumerate(func.params):
            if not isinstance(param.ty, ir.PrimType | relax.ShapeType):
                value = self.values[param] = fresh_value(param, position >= weights_from)
                if position in constants and isinstance(value, Value):
                    value.is_constant = value.is_parameter = True
                    value.closed_form = forms.get(str(position))
        for index, binding in enumerate(block.bindings):
            self._bind(index, binding)

    def _bind(self, index: int, binding: relax.Binding) -> None:
        value = binding.value
        alias = self._alias(value) if isinstance(binding, relax.VarBinding) else None
        if alias is not None:
            self.values[binding.var] = alias
        elif self._is_kernel_call(value):
            self._add_kernel(index, binding)
        else:
            self._add_opaque(index, binding)
        if not isinstance(binding.var, relax.DataflowVar):
            for leaving in flatten(self.values[binding.var]):
                leaving.leaves = True

    def _alias(self, expr: relax.Expr) -> Value | tuple | None:
        """Resolve an expression that computes nothing; None if it computes."""
        if isinstance(expr, relax.Var):
            if expr not in self.values and isinstance(expr.ty, relax.TensorType | relax.TupleType):
                self.values[expr] = fresh_value(expr, False)  # of an earlier block
            return self.values.get(expr)
        if isinstance(expr, ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
            if expr not in self._constants:
                self._constants[expr] = Value(
                    "constant", expr.ty, constant=expr, is_constant=True, is_parameter=True
                )
            return self._constants[expr]
        if isinstance(expr, relax.Tuple):
            fields = [self._alias(f) for f in expr.fields]
            return tuple(fields) if all(f is not None for f in fields) else None
        if isinstance(expr, relax.TupleGetItem):
            whole = self._alias(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, tuple) else None
        return None

    def _is_kernel_call(self, value: relax.Expr) -> bool:
        if not isinstance(value, relax.Call) or value.op != _CALL_TIR:
            return False
        func = self._mod.functions.get(value.args[0])
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func) or not has_blocks(func):
            return False
        results = _tensor_types(value.ty_args[0])
        return all(map(_has_elements, results)) and self._operands(value) is not None

    def _operands(self, call: relax.Call) -> tuple[Value | ir.Expr, ...] | None:
        """List what a call_tir passes: tensors and scalars; None if there is anything else."""
        passed = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else [call.args[1]]
        operands: list[Value | ir.Expr] = []
        for arg in [*passed, *call.args[2:]]:
            if isinstance(arg, relax.ShapeExpr):
                operands.extend(arg.values)
            elif isinstance(arg.ty, ir.PrimType):
                operands.append(arg)
            else:
                resolved = self._alias(arg)
                if resolved is None:
                    return None
                operands.extend(flatten(resolved))
        tensors = [o for o in operands if isinstance(o, Value)]
        return tuple(operands) if all(_has_elements(v.type) for v in tensors) else None

    def _add_kernel(self, index: int, binding: relax.VarBinding) -> None:
        gvar = binding.value.args[0]
        self._add(index, binding, self._mod[gvar], gvar, self._operands(binding.value) or ())

    def _add_opaque(self, index: int, binding: relax.Binding) -> None:
        reads: list[Value] = []
        found: list[ir.Expr] = []
        relax.analysis.post_order_visit(binding.value, found.append)
        free = set(relax.analysis.free_vars(binding.value))  # a nested function binds its own
        for expr in found:
            is_read = expr in free if isinstance(expr, relax.Var) else _is_constant(expr)
            if is_read and (resolved := self._alias(expr)) is not None:
                reads.extend(flatten(resolved))
        self._add(index, binding, None, None, tuple(dict.fromkeys(reads)))

    def _add(
        self,
        index: int,
        binding: relax.Binding,
        func: tirx.PrimFunc | None,
        gvar: ir.GlobalVar | None,
        operands: tuple[Value | ir.Expr, ...],
    ) -> None:
        operator = Operator(
            index, self._unique(binding.var.name), func, gvar, operands, (), binding
        )
        whole = fresh_value(binding.var, False, operator)
        operator.results = tuple(flatten(whole))
        self.values[binding.var] = whole
        tensors = list(dict.fromkeys(operator.tensors))
        is_parameter = bool(tensors) and all(v.is_parameter for v in tensors)
        for result in operator.results:
            result.is_parameter = is_parameter and func is not None
        for value in tensors:
            value.consumers.append(operator)
        if self._symbol_producers:
            sources = [self._symbol_producers.get(v) for v in _symbols(binding)]
            self.extra[operator] = list(dict.fromkeys(o for o in sources if o is not None))
        if isinstance(binding, relax.MatchCast):
            for symbol in relax.analysis.definable_tir_vars_in_type(binding.ty):
                self._symbol_producers.setdefault(symbol, operator)
        elif isinstance(binding.var.ty, ir.PrimType):
            self._symbol_producers[binding.var] = operator
        self.operators.append(operator)

    def _unique(self, name: str) -> str:
        """Make names unique that variables share, as Relax allows: lv, lv_1, lv_2."""
        unique = name
        while unique in self._taken:
            self._taken[name] += 1
            unique = f"{name}_{self._taken[name]}"
        self._taken[unique] = 0
        return unique


def fresh_value(
    var: relax.Var, is_parameter: bool, producer: Operator | None = None
) -> Value | tuple:
    """Make the value of a variable, or a nested tuple of those of its fields."""

    def build(name: str, type_: ir.Type) -> Value | tuple:
        if isinstance(type_, relax.TupleType):
            return tuple(build(f"{name}.{i}", f) for i, f in enumerate(type_.fields))
        return Value(name, type_, producer, is_parameter=is_parameter)

    return build(var.name, var.ty)


def _tensor_types(type_: ir.Type) -> list[relax.TensorType]:
    if isinstance(type_, relax.TupleType):
        return [t for f in type_.fields for t in _tensor_types(f)]
    return [type_]


def _has_elements(type_: ir.Type) -> bool:
    """Whether a tensor's shape is known, and no extent is 0 throughout: templates need a point."""
    if not isinstance(type_, relax.TensorType) or not isinstance(type_.shape, relax.ShapeExpr):
        return False
    return not any(isinstance(d, tirx.IntImm) and not int(d) for d in type_.shape.values)


def _is_constant(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.GenericConst)


def _symbols(binding: relax.Binding) -> list[tirx.Var]:
    """Symbolic variables that a binding mentions."""
    found = list(relax.analysis.tir_vars_in_type(binding.var.ty))
    scalars: list[ir.Expr] = []
    if isinstance(binding.value, relax.Call):
        for arg in binding.value.args:
            if isinstance(arg, relax.ShapeExpr):
                scalars.extend(arg.values)
            elif isinstance(arg, relax.Tuple):
                scalars.extend(f for f in arg.fields if isinstance(f.ty, ir.PrimType))
            elif isinstance(arg.ty, ir.PrimType):
                scalars.append(arg)
    for scalar in scalars:
        found.extend(tirx.analysis.undefined_vars(scalar))
    return list(dict.fromkeys(found))


def _has(func: relax.Function, name: str) -> bool:
    return bool(func.attrs) and name in func.attrs
