"""Types of one and two bytes that TVM lowers wrongly: bfloat16, float8, booleans."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.buffer import declare
from .._tvm.ir.structural import structural_map
from .._tvm.ir.target import has_llvm_feature, target_kind
from ..core.constants.narrow_types import FLOATS, STORAGE, decode, encode
from ..core.tir.expressions import call_name
from ..core.tir.loops import find

# Lower vectors of booleans, which TVM 0.27 accepts in kernels but fails to generate code for.
#
# A buffer of booleans that a kernel allocates and accesses by vectors of one width only becomes a
# buffer of int8 vectors (StorageRewrite), whose stores then do not fit.


@tirx.transform.prim_func_pass(opt_level=0, name="BytesForBooleans")
class BytesForBooleans:
    """Allocate bytes where a scheduled kernel allocates booleans."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the buffers that blocks allocate; parameters stay as they are."""
        blocks: list[s_tir.SBlock] = []
        tvm_ffi.structural_walk(func.body, (s_tir.SBlock, lambda block, *_: blocks.append(block)))
        bytes_of = {
            buffer: declare(buffer.shape, "int8", buffer.name, buffer.scope())
            for block in blocks
            for buffer in block.alloc_buffers
            if str(buffer.ty.dtype) == "bool"
        }
        if not bytes_of:
            return func
        replaced = set(bytes_of.values())

        def load(found: ir.TensorLoad) -> ir.Expr:
            buffer = bytes_of.get(found.source, found.source)
            if buffer not in replaced:
                return found
            return tirx.BufferLoad(buffer, list(found.indices)) != tirx.IntImm("int8", 0)

        def store(found: tirx.BufferStore) -> tirx.Stmt:
            buffer = bytes_of.get(found.buffer, found.buffer)
            if buffer not in replaced:
                return found
            return tirx.BufferStore(buffer, tirx.Cast("int8", found.value), list(found.indices))

        return tvm_ffi.structural_map(
            func,
            [
                (ir.TensorLoad, load),
                (tirx.BufferStore, store),
                (ir.Var, lambda var: bytes_of.get(var, var)),
            ],
            order="post",
        )


# Float8 on a CPU, cast by integer arithmetic on its bits.
#
# TVM 0.27's FP8ComputeLegalize moves exponent and mantissa alone: zero of ``float8_e4m3fn`` becomes
# 2^-7, subnormal numbers are off, NaN is a number, and what is rounded is cut off. Here casts are
# written by :mod:`tvm_fusion.core.constants.narrow_types` before loops become vectors.


@tirx.transform.prim_func_pass(opt_level=0, name="CastFloat8")
class CastFloat8:
    """Write casts from and to float8 in functions for a CPU."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the casts in one function."""
        if target_kind(func) != "llvm":
            return func
        return tvm_ffi.structural_map(func, [(tirx.Cast, _written)], order="post")


def _written(cast: tirx.Cast) -> ir.Expr:
    source, target = str(cast.value.ty.dtype), str(cast.ty.dtype)
    value = cast.value
    if source in FLOATS:
        value = decode(tirx.reinterpret(STORAGE, value), source)
    if target in FLOATS:
        wide = value if str(value.ty.dtype) == FLOAT else tirx.Cast(FLOAT, value)
        # As PyTorch: infinity where there is one, the largest number elsewhere.
        saturates = FLOATS[target].infinity is None
        return tirx.reinterpret(target, encode(wide, target, saturates))
    if source in FLOATS:
        return value if target == FLOAT else tirx.Cast(target, value)
    return cast


# Bfloat16 on a CPU: stored as 16 bits, computed in float32, rounded to the nearest even.
#
# TVM 0.27's BF16ComputeLegalize does this before loops become vectors. It writes what it rounds
# twice, bindings included ("Let cannot bind the same var to two different values"), does not look
# into what is bound, gives allocated buffers another type although bits of them are read ("Invalid
# bitcast"), and rounds NaN of some payloads to zero. Here functions for a CPU are lowered once
# vectors are there; what is rounded is the argument of a function in LLVM's own language, which
# LLVM puts in the place of each call. Functions for other devices take TVM's way.


BF16, FLOAT, BITS = "bfloat16", "float32", "uint16"
_NAME = "tvm_fusion_round_bf16_{lanes}"
# Every NaN becomes the one of all ones: adding to its bits could carry into the sign, and AVX2
# chooses by a comparison in two or three operations, but sets bits by it in one.
_SOURCE = """
define linkonce_odr {half} @{name}({float} %x) alwaysinline {{
  %bits = bitcast {float} %x to {word}
  %high = lshr {word} %bits, {sixteen}
  %odd = and {word} %high, {one}
  %bias = add {word} %odd, {below}
  %sum = add {word} %bits, %bias
  %nan = fcmp uno {float} %x, {zero}
  %ones = sext {truth} %nan to {word}
  %number = or {word} %sum, %ones
  %rounded = lshr {word} %number, {sixteen}
  %half = trunc {word} %rounded to {half}
  ret {half} %half
}}
"""
# AVX512-BF16 has an instruction, which LLVM chooses; it makes zeros of subnormal numbers.
_ROUNDING = "avx512bf16"
_BY_INSTRUCTION = """
define linkonce_odr {half} @{name}({float} %x) alwaysinline {{
  %rounded = fptrunc {float} %x to {bfloat}
  %half = bitcast {bfloat} %rounded to {half}
  ret {half} %half
}}
"""
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


@tirx.transform.prim_func_pass(opt_level=0, name="BF16ComputeLegalize")
class ComputeLegalizeElsewhere:
    """TVM's BF16ComputeLegalize, of functions that do not run on a CPU."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Apply to one function."""
        if target_kind(func) == "llvm":
            return func
        return tirx.transform.BF16ComputeLegalize()(tvm.IRModule({"main": func}))["main"]


@tirx.transform.prim_func_pass(opt_level=0, name="LowerBF16")
class LowerBF16:
    """Compute bfloat16 in float32, in functions for a CPU whose loops are vectors already."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function; only loads and stores are of bfloat16 then."""
        if target_kind(func) != "llvm":
            return func
        calls = find(func.body, ir.Call)
        lowering = _Lowering([c.args[0] for c in calls if call_name(c) == "address_of"])
        kinds = [
            (tirx.BufferStore, lowering.store),
            (ir.TensorLoad, lowering.load),
            (tirx.FloatImm, lowering.number),
            (tirx.Cast, lowering.cast),
            (tirx.Select, lowering.select),
            (tirx.Broadcast, lowering.broadcast),
            (tirx.Shuffle, lowering.shuffle),
            (ir.Call, lowering.call),
            *((kind, lowering.arithmetic) for kind in _ARITHMETIC),
            *((kind, lowering.comparison) for kind in _COMPARISONS),
        ]
        body = structural_map(func.body, kinds, order="post")
        for lanes in sorted(lowering.lanes):
            source = ir.StringImm(_source(lanes, has_llvm_feature(func, _ROUNDING)))
            body = tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", source, body)
        return func.with_body(body)


class _Lowering:
    """Rewrites expressions from the leaves up.

    What was of bfloat16 is one of two afterwards: bits, ``reinterpret(bfloat16, uint16 ...)``, or a
    number that is not rounded, ``cast(bfloat16, float32 ...)``.

    Parameters
    ----------
    addressed
        Loads that only name an address, such as one to prefetch.

    Attributes
    ----------
    lanes : set of int
        Of vectors that are rounded; 1 is a scalar.
    """

    def __init__(self, addressed: list[ir.Expr]) -> None:
        self.lanes: set[int] = set()
        self._addressed = addressed

    def store(self, found: tirx.BufferStore) -> tirx.Stmt:
        if not _is_bf16(found.value):
            return found
        value = _from_bits(self._bits(found.value))
        return tirx.BufferStore(found.buffer, value, list(found.indices))

    def load(self, found: ir.TensorLoad) -> ir.Expr:
        if not _is_bf16(found) or any(found.same_as(other) for other in self._addressed):
            return found
        return _from_bits(tirx.reinterpret(_type(BITS, found), found))

    def number(self, found: tirx.FloatImm) -> ir.Expr:
        return _unrounded(tirx.const(found.value, FLOAT)) if _is_bf16(found) else found

    def cast(self, found: tirx.Cast) -> ir.Expr:
        value = found.value
        if _is_bf16(value):
            if _is_bf16(found):
                return value
            wide = _wide(value)
            is_float = str(found.ty.dtype) == _type(FLOAT, found)
            return wide if is_float else tirx.Cast(str(found.ty.dtype), wide)
        if not _is_bf16(found):
            return found
        if str(value.ty.dtype) != _type(FLOAT, value):
            value = tirx.Cast(_type(FLOAT, value), value)
        return _from_bits(self._bits(_unrounded(value)))

    def select(self, found: tirx.Select) -> ir.Expr:
        return (
            self._moved(
                [found.true_value, found.false_value],
                lambda a, b: tirx.Select(found.condition, a, b),
            )
            if _is_bf16(found)
            else found
        )

    def broadcast(self, found: tirx.Broadcast) -> ir.Expr:
        if not _is_bf16(found):
            return found
        return self._moved([found.value], lambda value: tirx.Broadcast(value, found.lanes))

    def shuffle(self, found: tirx.Shuffle) -> ir.Expr:
        if not _is_bf16(found):
            return found
        vectors, indices = list(found.vectors), list(found.indices)
        return self._moved(vectors, lambda *values: tirx.Shuffle(list(values), indices))

    def call(self, found: ir.Call) -> ir.Expr:
        name, arguments = call_name(found), list(found.args)
        halves = [isinstance(a, ir.Expr) and _is_bf16(a) for a in arguments]
        # A DLTensor keeps its element type: the extern function that is given it reads 16 bits.
        if name in ("address_of", "tvm_stack_make_array") or (
            not _is_bf16(found) and not any(halves)
        ):
            return found
        if name == "if_then_else":
            condition, *branches = arguments
            return self._moved(branches, lambda a, b: tirx.if_then_else(condition, a, b))
        if name == "reinterpret":
            (value,) = arguments
            value = self._bits(value) if halves[0] else value
            if not _is_bf16(found):
                return tirx.reinterpret(str(found.ty.dtype), value)
            return _from_bits(tirx.reinterpret(_type(BITS, found), value))
        values = [_wide(a) if half else a for a, half in zip(arguments, halves, strict=True)]
        if not _is_bf16(found):
            return _called(found, values, found.ty)
        return _unrounded(_called(found, values, _type(FLOAT, found)))

    def arithmetic(self, found: tirx.Add) -> ir.Expr:
        if not _is_bf16(found.a):
            return found
        return _unrounded(type(found)(_wide(found.a), _wide(found.b)))

    def comparison(self, found: tirx.LT) -> ir.Expr:
        return type(found)(_wide(found.a), _wide(found.b)) if _is_bf16(found.a) else found

    def _moved(self, values: list[ir.Expr], make: Callable[..., ir.Expr]) -> ir.Expr:
        """Select or shuffle values as 16-bit integers, or in float32 if one is not rounded yet."""
        if all(_has_bits(value) for value in values):
            return _from_bits(make(*map(self._bits, values)))
        return _unrounded(make(*map(_wide, values)))

    def _bits(self, value: ir.Expr) -> ir.Expr:
        if isinstance(value, ir.Call):
            return value.args[0]
        number = value.value
        if isinstance(number, tirx.FloatImm):
            array = np.array(number.value, ml_dtypes.bfloat16)
            return tirx.const(int(array.view(np.uint16)), BITS)
        if _is_exact(number):
            word = _type("uint32", number)
            high = tirx.reinterpret(word, number) >> tirx.const(16, word)
            return tirx.Cast(_type(BITS, number), high)
        lanes = number.ty.dtype.lanes
        self.lanes.add(lanes)
        return tirx.call_pure_extern(_type(BITS, number), _NAME.format(lanes=lanes), number)


def _called(call: ir.Call, arguments: list[ir.Expr], ty: ir.Type | str) -> ir.Call:
    return ir.Call(call.op, arguments, call.attrs, None, None, ret_ty=ty)


def _from_bits(bits: ir.Expr) -> ir.Expr:
    return tirx.reinterpret(_type(BF16, bits), bits)


def _unrounded(number: ir.Expr) -> ir.Expr:
    return tirx.Cast(_type(BF16, number), number)


def _has_bits(value: ir.Expr) -> bool:
    return isinstance(value, ir.Call) or isinstance(value.value, tirx.FloatImm)


def _wide(value: ir.Expr) -> ir.Expr:
    if isinstance(value, tirx.Cast):
        return value.value
    dtype, bits = _type("uint32", value), value.args[0]
    sixteen = tirx.const(16, dtype)
    return tirx.reinterpret(_type(FLOAT, value), tirx.Cast(dtype, bits) << sixteen)


def _is_exact(number: ir.Expr) -> bool:
    """Whether a float32 is one of some bfloat16 numbers: what was widened, or one chosen of it."""
    if isinstance(number, tirx.Max | tirx.Min):
        return _is_exact(number.a) and _is_exact(number.b)
    if isinstance(number, tirx.Select):
        return _is_exact(number.true_value) and _is_exact(number.false_value)
    if isinstance(number, tirx.Broadcast):
        return _is_exact(number.value)
    if isinstance(number, tirx.FloatImm):
        return number.value == float(np.float32(number.value).astype(ml_dtypes.bfloat16))
    if call_name(number) == "if_then_else":
        return all(map(_is_exact, number.args[1:]))
    if call_name(number) != "reinterpret":
        return False
    (word,) = number.args
    shifted = word.a if isinstance(word, tirx.LShift) else None
    return isinstance(shifted, tirx.Cast) and str(shifted.value.ty.dtype).startswith(BITS)


def _type(dtype: str, like: ir.Expr) -> str:
    """Return a type with the lanes of an expression."""
    lanes = like.ty.dtype.lanes
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _is_bf16(expr: ir.Expr) -> bool:
    ty = getattr(expr, "ty", None)
    return isinstance(ty, ir.PrimType) and str(ty.dtype).startswith(BF16)


def _source(lanes: int, has_instruction: bool) -> str:
    def kind(name: str) -> str:
        return name if lanes == 1 else f"<{lanes} x {name}>"

    def number(value: int) -> str:
        return str(value) if lanes == 1 else f"<{', '.join(f'i32 {value}' for _ in range(lanes))}>"

    words = {n: number(v) for n, v in (("sixteen", 16), ("one", 1), ("below", 0x7FFF))}
    kinds = {"float": "float", "word": "i32", "half": "i16", "truth": "i1", "bfloat": "bfloat"}
    zero = "0.0" if lanes == 1 else "zeroinitializer"
    return (_BY_INSTRUCTION if has_instruction else _SOURCE).format(
        name=_NAME.format(lanes=lanes),
        zero=zero,
        **words,
        **{n: kind(t) for n, t in kinds.items()},
    )
