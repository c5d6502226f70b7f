"""Expressions of lowered TIR as functions of a machine: ``[thread, lane]`` or scalars."""

import math

import numpy as np
from tvm import ir, tirx

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.lower.thread_values import SHUFFLES

from . import instructions, wave_products
from .memory import EmulationError
from .scalar_types import scalar_type


def lanes_of(dtype):
    _, _, lanes = str(dtype).partition("x")
    return int(lanes or 1)


def each_lane(function):
    """A function of lists of numbers for arrays."""
    made = np.frompyfunc(function, 1, 1)
    return lambda x: made(np.asarray(x, "float64")).astype(np.asarray(x).dtype)


def wide(function):
    """Compute in float32 what ml_dtypes lacks for half types."""

    def apply(x):
        x = np.asarray(x)
        if x.dtype.itemsize > 2:
            return function(x)
        return function(x.astype("float32")).astype(x.dtype)

    return apply


def quotient(a, b):
    """Division as C has it: integers are cut towards zero."""
    if np.asarray(a).dtype.kind not in "iu":
        return a / b
    return a // b + ((a % b != 0) & ((a < 0) != (b < 0)))


def guarded(divide):
    """Divide integers; by 0 it is 0."""

    def apply(a, b):
        b = np.asarray(b)
        return np.where(b == 0, 0, divide(a, np.where(b == 0, 1, b))).astype(b.dtype)

    return apply


#: What :mod:`tvm_fusion.core.tir.integers` keeps from simplifiers; numpy's integers wrap around.
WRAPPING = {
    "wrapping_add": np.add,
    "wrapping_sub": np.subtract,
    "wrapping_mul": np.multiply,
    "wrapping_floordiv": guarded(np.floor_divide),
    "wrapping_floormod": guarded(np.mod),
    "wrapping_truncdiv": guarded(quotient),
    "wrapping_truncmod": guarded(np.fmod),
    "wrapping_shift_left": np.left_shift,
    "wrapping_shift_right": np.right_shift,
}
UNARY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(np.asarray(10, np.asarray(x).dtype), x),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(np.asarray(x).dtype),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": each_lane(math.erf),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x),
    "nearbyint": np.rint,
    "fabs": np.abs,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "bitwise_not": np.invert,
    "likely": lambda x: x,
}
BINARY = {
    "pow": np.power,
    "fmod": np.fmod,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "hypot": np.hypot,
    "ldexp": np.ldexp,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}
NODES = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Div: quotient,
    tirx.Mod: np.fmod,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
}
# The same by bits, which numpy does many times as fast.
BY_POWERS_OF_TWO = {
    tirx.FloorDiv: (np.right_shift, lambda size: size.bit_length() - 1),
    tirx.FloorMod: (np.bitwise_and, lambda size: size - 1),
}


def is_power_of_two(node):
    value = int(node.value) if isinstance(node, tirx.IntImm) else 0
    return value > 0 and value & (value - 1) == 0


class Expressions:
    """Translates expressions; variables and buffers have slots of a machine."""

    def __init__(self):
        self.places = {}
        self.sums = set()  # slots of accumulators of wgmma

    def slot(self, variable):
        return self.places.setdefault(variable, len(self.places))

    def of(self, node):
        """Make a function that computes an expression."""
        kind = type(node)
        if kind in NODES:
            function, a, b = NODES[kind], self.of(node.a), self.of(node.b)
            if kind in BY_POWERS_OF_TWO and is_power_of_two(node.b):
                function, number = BY_POWERS_OF_TWO[kind]
                value = scalar_type(node.b.ty.dtype).type(number(int(node.b.value)))
                return lambda m: function(a(m), value)
            return lambda m: function(a(m), b(m))
        method = getattr(self, f"_{kind.__name__.lower()}", None)
        if method is None:
            raise EmulationError(f"no such expression is known: {kind.__name__} in {node}")
        return method(node)

    def _intimm(self, node):
        value = scalar_type(node.ty.dtype).type(node.value)
        return lambda m: value

    _floatimm = _intimm

    def _var(self, node):
        slot = self.slot(node)
        return lambda m: m.slots[slot]

    def _bitwisenot(self, node):
        value = self.of(node.a)
        return lambda m: np.bitwise_not(value(m))

    def _cast(self, node):
        value, dtype = self.of(node.value), scalar_type(node.ty.dtype)
        return lambda m: np.asarray(value(m)).astype(dtype)[()]

    def _not(self, node):
        value = self.of(node.a)
        return lambda m: np.logical_not(value(m))

    def _and(self, node):
        return self._short_cut(node, np.logical_and, lambda a: a)

    def _or(self, node):
        return self._short_cut(node, np.logical_or, np.logical_not)

    def _short_cut(self, node, function, goes_on):
        a, b = self.of(node.a), self.of(node.b)

        def run(m):
            first = a(m)
            with m.only(_first_lane(goes_on(first))) as some:
                return function(first, b(m)) if some else first

        return run

    def _select(self, node):
        parts = [self.of(x) for x in (node.condition, node.true_value, node.false_value)]
        return lambda m: np.where(*(part(m) for part in parts))

    def _if_then_else(self, node):
        condition, yes, no = map(self.of, node.args)

        def run(m):
            given = condition(m)
            sides = []
            for side, where in ((yes, given), (no, np.logical_not(given))):
                with m.only(_first_lane(where)) as some:
                    sides.append(side(m) if some else None)
            if sides[0] is None or sides[1] is None:
                return sides[1] if sides[0] is None else sides[0]
            return np.where(given, *sides)

        return run

    def _ramp(self, node):
        base, stride, lanes = self.of(node.base), self.of(node.stride), int(node.lanes)

        def run(m):
            first, step = base(m), stride(m)
            if np.ndim(first) == 0 and np.ndim(step) == 0 and step == 1:
                return slice(int(first), int(first) + lanes)
            return np.asarray(first) + step * np.arange(lanes)[None]

        return run

    def values(self, node):
        """Of an expression that is no index: ramps as numbers."""
        run = self.of(node)
        if not isinstance(node, tirx.Ramp):
            return run

        def numbers(m):
            found = run(m)
            return np.arange(found.start, found.stop)[None] if isinstance(found, slice) else found

        return numbers

    def _broadcast(self, node):
        value, lanes = self.of(node.value), int(node.lanes)

        def run(m):
            found = np.asarray(value(m))
            return np.broadcast_to(found, (len(found) if found.ndim else 1, lanes))

        return run

    def _shuffle(self, node):
        vectors, indices = [self.of(v) for v in node.vectors], [self.of(i) for i in node.indices]

        def run(m):
            found = np.concatenate([_rows(v(m), m) for v in vectors], 1)
            return found[:, [int(i(m)) for i in indices]]

        return run

    def index(self, buffer, indices):
        """Places of scalars, of which an element may be several."""
        (node,) = indices
        index, lanes = self.of(node), lanes_of(buffer.dtype)
        if lanes == 1:
            return index
        if isinstance(node, tirx.Ramp):
            raise EmulationError(f"a vector of vectors: {node}")

        def run(m):
            first = index(m) * lanes
            if np.ndim(first) == 0:
                return slice(int(first), int(first) + lanes)
            return first + np.arange(lanes)[None]

        return run

    def _tensorload(self, node):
        slot, index = self.slot(node.source), self.index(node.source, node.indices)
        return lambda m: m.slots[slot].read(index(m))

    _bufferload = _tensorload

    def pointer(self, node):
        """``address_of(load)`` as memory and index."""
        if not isinstance(node, ir.Call) or call_name(node) != "address_of":
            raise EmulationError(f"no address: {node}")
        load = node.args[0]
        if lanes_of(load.source.dtype) > 1:
            raise EmulationError(f"an address of vectors: {node}")
        slot, index = self.slot(load.source), self.of(load.indices[0])
        return lambda m: (m.slots[slot], index(m))

    def accumulators(self, node):
        """``address_of`` registers that products write at a time of their own."""
        run = self.pointer(node)
        self.sums.add(self.slot(node.args[0].source))
        return run

    def _call(self, node):
        name = call_name(node)
        if name == "if_then_else":
            return self._if_then_else(node)
        if name in UNARY:
            function, value = wide(UNARY[name]), self.values(node.args[0])
            return lambda m: function(value(m))
        if name in BINARY:
            function, a, b = BINARY[name], *map(self.values, node.args)
            return lambda m: function(a(m), b(m))
        if name in WRAPPING:
            function, (a, b) = WRAPPING[name], map(self.of, node.args)
            dtype = scalar_type(node.ty.dtype)

            def wrapped(m):
                with np.errstate(over="ignore"):
                    return function(np.asarray(a(m), dtype), np.asarray(b(m), dtype))

            return wrapped
        if name == "wrapping_cast":
            value, dtype = self.of(node.args[0]), scalar_type(node.ty.dtype)
            return lambda m: np.asarray(value(m)).astype(dtype)
        if name == "reinterpret":
            return self._reinterpret(node)
        if name in SHUFFLES:
            kind, width = name.removeprefix("tvm_warp_shuffle"), int(node.args[3])
            parts = [self.of(x) for x in node.args[:3]]
            return lambda m: instructions.shuffle(kind, m, *(part(m) for part in parts), width)
        if name == "tvm_warp_activemask":
            return lambda m: np.uint32(instructions.FULL_MASK if m.mask is None else 1)
        if name in ("call_llvm_intrin", "call_llvm_pure_intrin"):
            return wave_products.intrinsic(self, node)
        if name == "func_call":
            return instructions.device_function(self, node)
        if name == "large_uint_imm":
            low, high = (int(x.value) for x in node.args)
            value = scalar_type(node.ty.dtype).type(high << 32 | low)
            return lambda m: value
        raise EmulationError(f"no such intrinsic is known: {name} in {node}")

    def _reinterpret(self, node):
        value, dtype = self.of(node.args[0]), scalar_type(node.ty.dtype)

        def run(m):
            found = np.asarray(value(m))
            if found.ndim == 0:
                return (
                    found.view(dtype)
                    if found.dtype.itemsize == dtype.itemsize
                    else (found.reshape(1, 1).view(dtype))
                )
            return np.ascontiguousarray(found).view(dtype)

        return run


def _first_lane(condition):
    condition = np.asarray(condition)
    if condition.ndim == 2 and condition.shape[1] > 1:
        raise EmulationError("a vector of conditions guards a part")
    return condition


def _rows(value, machine):
    value = np.asarray(value)
    return np.broadcast_to(value, (machine.threads, value.shape[1] if value.ndim else 1))
