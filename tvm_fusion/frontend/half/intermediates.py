"""What one operator computes of half types on the way to its result is computed in float32.

A framework's operator that becomes several of Relax's would round each result in between to the
half type: the squares of a norm overflow or vanish although the norm is small. So a converter is
asked twice: where what it made rounds something in between, it converts operands of float32, and
the result is rounded once. What one operator of Relax computes inside is legalization's part
(:mod:`tvm_fusion.ecg.legalization.accumulate`); between two operators of the model values keep
their types. Powers of bfloat16 leave float32's range as well where their root does not: norms are
computed in float64.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir import GenericConst

from ..._tvm.ir.structural import structural_walk
from ..normalize.engine import op_name
from ..tensor_types import HALF, dtype_of

WIDE = "float32"
_OF_POWERS = frozenset(
    (
        *("ReduceL2", "ReduceLogSum", "LpPool", "GlobalLpPool", "LpNormalization", "LRN"),
        *("InstanceNormalization", "MeanVarianceNormalization"),
        *("linalg_vector_norm", "var", "std", "var_mean"),
    )
)
# Larger constants are cast by an operator, which products of matrices look through: so they are
# stored in their own type.
_LARGEST = 1024
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)


def _relax(names: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in names.split())


# What moves or selects elements, and what is the same before and after rounding.
_EXACT = _relax(
    "reshape permute_dims expand_dims squeeze flatten broadcast_to strided_slice concat stack "
    "split take gather_elements gather_nd tile repeat flip max min tril triu where clip maximum "
    "minimum negative abs sign index_tensor scatter_elements scatter_nd dynamic_strided_slice "
    "slice_scatter one_hot sort topk zeros_like ones_like full_like tensor_to_shape "
    "shape_of shape_to_tensor nn.relu nn.pad nn.max_pool1d "
    "nn.max_pool2d nn.max_pool3d"
)
_PREDICATES = _relax("isnan isinf isfinite")


def rounds_between(results: Iterable[Any], builder: relax.BlockBuilder, inputs: Any) -> bool:
    """Tell whether a converted operator rounds what it computes to a half type, and goes on.

    Parameters
    ----------
    results : iterable of tvm.relax.Expr or None
        What the converter returned. What it returns is rounded by right, used inside or not.
    builder : tvm.relax.BlockBuilder
        Which knows what the variables are bound to.
    inputs : iterable
        Of the operator, where it begins.
    """
    results = [leaf for result in results for leaf in _leaves(result)]
    return _Walk(results, builder, inputs).finds()


class _Walk:
    """A walk over what an operator was converted to, from its results to its inputs."""

    def __init__(self, results: list[Any], builder: relax.BlockBuilder, inputs: Any):
        self._results, self._builder = results, builder
        self._ends = {hash(leaf) for value in inputs for leaf in _leaves(value)}
        self._rounded: dict[int, bool] = {}
        self._returned = {hash(x) for x in results if isinstance(x, relax.Var)}
        self._found = False

    def finds(self) -> bool:
        for result in self._results:
            self._is_rounded(result)
        return self._found

    def _is_rounded(self, expr: Any) -> bool:
        """Tell whether a value was rounded to a half type here."""
        key = hash(expr)
        if key in self._ends or not isinstance(expr, relax.Expr):
            return False
        if key not in self._rounded:
            self._rounded[key] = False
            self._rounded[key] = self._visit(expr)
        return self._rounded[key]

    def _visit(self, expr: Any) -> bool:
        if isinstance(expr, relax.Var):
            bound = self._builder.lookup_binding(expr)
            return bound is not None and self._is_rounded(bound)
        if isinstance(expr, relax.Tuple):
            return any([self._is_rounded(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return self._is_rounded(expr.tuple_value)
        if not isinstance(expr, relax.Call):
            return False
        operands = [a for a in expr.args if isinstance(a, relax.Expr)]
        rounded = [a for a in operands if self._is_rounded(a)]
        name = op_name(expr)
        if name in _EXACT and not adds_or_multiplies(expr):
            return bool(rounded)
        # Of what the operator returns, it reads what it returns. A product of matrices reads half
        # types where a converter says so by a cast.
        read = [a for a in rounded if hash(a) not in self._returned]
        if name == "relax.matmul":
            read = [a for a in read if not self._is_cast(a)]
        self._found |= bool(read) and name not in _PREDICATES
        if name == "relax.call_tir" and self._is_half(expr):
            return self._kernel(expr)
        return self._is_half(expr)

    def _is_cast(self, expr: Any) -> bool:
        """Tell whether a value is cast to a half type; behind what moves and selects as well."""
        while isinstance(expr, relax.Var | relax.TupleGetItem):
            is_item = isinstance(expr, relax.TupleGetItem)
            bound = expr.tuple_value if is_item else self._builder.lookup_binding(expr)
            if bound is None:
                return False
            expr = bound
        if op_name(expr) == "relax.astype":
            return True
        if isinstance(expr, relax.Tuple):
            parts = list(expr.fields)
        else:
            parts = list(expr.args) if op_name(expr) in _EXACT else []
        read = [part for part in parts if self._is_rounded(part)]
        return bool(read) and all(map(self._is_cast, read))

    def _kernel(self, call: relax.Call) -> bool:
        """Look into a PrimFunc: arithmetic of half types in it is rounded step by step."""
        func = self._builder.get()[call.args[0]]
        found: list[Any] = []

        def note(expr: Any) -> None:
            if str(expr.ty.dtype) in HALF:
                found.append(expr)

        structural_walk(func.body, [(kind, note) for kind in _ARITHMETIC])
        self._found |= bool(found)
        return bool(found)

    @staticmethod
    def _is_half(expr: Any) -> bool:
        ty = expr.ty if expr.ty is not None else None
        fields = ty.fields if isinstance(ty, relax.TupleType) else [ty]
        return any(
            isinstance(f, relax.TensorType) and f.dtype is not None and str(f.dtype.dtype) in HALF
            for f in fields
        )


def adds_or_multiplies(call: relax.Call) -> bool:
    """Tell whether an operator is a scatter that adds or multiplies what it writes."""
    return str(getattr(call.attrs, "reduction", "update")) in ("add", "mul", "mean")


def wide_dtype(name: str, inputs: Iterable[Any]) -> str:
    """Return the type in which an operator of half types is computed.

    Parameters
    ----------
    name
        In ONNX or in PyTorch.
    """
    is_wider = name in _OF_POWERS and any(dtype_of(v) == "bfloat16" for v in inputs)
    return "float64" if is_wider else WIDE


def widened(value: Any, emit: Any, wide: str = WIDE) -> Any:
    """Cast what is of a half type in an operand, also in lists and tuples.

    Parameters
    ----------
    value
        An operand; what is no tensor of a half type is returned as it is.
    emit : callable
        Binds an expression to a variable.
    wide
        The type to cast to.
    """
    if isinstance(value, list | tuple):
        return type(value)(widened(each, emit, wide) for each in value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([widened(each, emit, wide) for each in value.fields])
    if dtype_of(value) not in HALF:
        return value
    if isinstance(value, GenericConst) and int(np.prod(_extents(value))) <= _LARGEST:
        return relax.const(value.value.numpy().astype(wide), wide)
    return emit(relax.op.astype(value, wide))


def narrowed(value: Any, like: Any, emit: Any) -> Any:
    """Round a result to the type that it has where the operator computes in a half type."""
    dtype = dtype_of(like)
    if value is None or dtype not in HALF or dtype_of(value) == dtype:
        return value
    return emit(relax.op.astype(value, dtype))


def _extents(const: GenericConst) -> list[int]:
    return [int(extent) for extent in const.value.shape]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in _leaves(each)]
    if isinstance(value, relax.Tuple):
        return [leaf for field in value.fields for leaf in _leaves(field)]
    return [value] if isinstance(value, relax.Expr | ir.Var) else []
