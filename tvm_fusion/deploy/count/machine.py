"""Runs a lowered module on shapes alone and counts what it launches.

The module is taken as the virtual machine's code generator takes it: memory planned, PrimFuncs
called on allocated tensors, symbolic extents in the shape heap. So the count follows the very calls
that run, through private functions, closures and bodies captured into CUDA graphs.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import tvm
from tvm import ir, relax, tirx

from ...core.recursion import COUNTED, loop_kind
from . import machine as builtins
from .host import Env, Profile, tensor_bits
from .values import FunctionValue, Heap, ShapeValue, Tally, TensorValue

ONE_TRIP = "counted for one trip"
Profiler = Callable[[str, tirx.PrimFunc, Sequence[object]], Profile]


class Machine:
    """Evaluate functions of a lowered module.

    Parameters
    ----------
    profiler
        Says what one call of a PrimFunc launches, given its name, itself and its arguments.
    on_device
        Whether tensors live on a device, so that the host reads them through a copy.
    symbols
        Extents of the symbolic dimensions.
    """

    def __init__(self, mod: tvm.IRModule, profiler: Profiler, on_device: bool, symbols: Env):
        self.tally = Tally()
        self._functions = {gvar.name_hint: func for gvar, func in mod.functions.items()}
        self._profiler = profiler
        self._on_device = on_device
        self._symbols = symbols
        self._fresh = itertools.count()
        self._active: list[str] = []
        self._repeats: dict[tuple[object, ...], tuple[object, Tally]] = {}

    def value_of_type(self, ty: ir.Type, allocate: bool = False) -> object:
        """Return a value of a Relax type, its tensors newly allocated if ``allocate``."""
        if isinstance(ty, relax.TensorType):
            shape = None
            if isinstance(ty.shape, relax.ShapeExpr):
                shape = tuple(self._symbols.evaluate(extent) for extent in ty.shape.values)
            if allocate:
                return self._allocate(shape, str(ty.dtype), "a library call's result")
            return TensorValue(shape, str(ty.dtype))
        if isinstance(ty, relax.TupleType):
            return tuple(self.value_of_type(item, allocate) for item in ty.fields)
        if isinstance(ty, relax.ShapeType) and ty.values is not None:
            return ShapeValue(tuple(self._symbols.evaluate(extent) for extent in ty.values))
        return None

    def invoke(self, function: FunctionValue, args: Sequence[object]) -> object:
        """Evaluate a call of a Relax function."""
        kind = loop_kind(function.function)
        if kind == COUNTED and (trips := _trips(args)) is not None:
            return self._repeated(function, args, trips)
        if function.name in self._active:
            if not kind:
                self.tally.caveats.append(f"{function.name}: a recursive call is not followed")
            return self.value_of_type(function.function.ret_ty)
        if kind:
            self.tally.caveats.append(
                f"{function.name}: a loop that ends at run time is {ONE_TRIP}"
            )
        return self._run(function, args)

    def _repeated(self, function: FunctionValue, args: Sequence[object], trips: int) -> object:
        """Count a loop of known length: calls of equal length launch the same, so one of each."""
        if function.name not in self._active:
            self.tally.caveats.append(
                f"{function.name}: {trips} trips are counted, whose kernels are listed once"
            )
        key = function.name, trips, tuple(arg for arg in args[1:] if isinstance(arg, TensorValue))
        if key not in self._repeats:
            before, self.tally = self.tally, Tally()
            result = self._run(function, args)
            self._repeats[key] = result, self.tally
            self.tally = before
        result, tally = self._repeats[key]
        sizes = tally.allocations.values()
        fresh = {next(self._fresh): size for size in sizes}
        self.tally.add(replace(tally, allocations=fresh))
        return result

    def _run(self, function: FunctionValue, args: Sequence[object]) -> object:
        self._active.append(function.name)
        values = dict(zip(function.function.params, (*args, *function.bound), strict=True))
        result = self._evaluate(function.function.body, values)
        self._active.pop()
        return result

    def _evaluate(self, expr: ir.Expr, values: dict[ir.Var, object]) -> object:
        if isinstance(expr, relax.SeqExpr):
            for block in expr.blocks:
                for binding in block.bindings:
                    values[binding.var] = self._evaluate(binding.value, values)
            return self._evaluate(expr.body, values)
        if isinstance(expr, ir.Var):
            return values[expr] if expr in values else self._symbols.evaluate(expr)
        if isinstance(expr, ir.Tuple):
            return tuple(self._evaluate(item, values) for item in expr.fields)
        if isinstance(expr, ir.TupleGetItem):
            items = self._evaluate(expr.tuple_value, values)
            return items[expr.index] if isinstance(items, tuple) else None
        if isinstance(expr, relax.ShapeExpr):
            return ShapeValue(tuple(self._symbols.evaluate(extent) for extent in expr.values))
        if isinstance(expr, tirx.IntImm):
            return int(expr.value)
        if isinstance(expr, ir.GenericConst):
            return self.value_of_type(expr.ty)
        if isinstance(expr, ir.GlobalVar):
            target = self._functions.get(expr.name_hint)
            known = isinstance(target, relax.Function)
            return FunctionValue(target, expr.name_hint) if known else None
        if isinstance(expr, relax.If):
            return self._branch(expr, values)
        if isinstance(expr, ir.Call):
            return self._call(expr, values)
        return None

    def _branch(self, expr: relax.If, values: dict[ir.Var, object]) -> object:
        """Count the branch that launches more where which one runs depends on data."""
        taken = self._evaluate(expr.cond, values)
        if isinstance(taken, int):
            return self._evaluate(expr.true_branch if taken else expr.false_branch, values)
        if self._on_device and isinstance(expr.cond.ty, relax.TensorType):
            self.tally.launch("vm.builtin.read_if_cond", "", "copy")
        before, outcomes = self.tally, []
        for branch in (expr.true_branch, expr.false_branch):
            self.tally = Tally()
            outcomes.append((self._evaluate(branch, dict(values)), self.tally))
        self.tally = before
        result, tally = max(outcomes, key=lambda outcome: outcome[1].weight)
        self.tally.add(tally)
        return result

    def _call(self, call: ir.Call, values: dict[ir.Var, object]) -> object:
        op, operands = call.op, list(call.args)
        if isinstance(op, ir.Op):
            if op.name == "relax.vm.alloc_tensor":
                shape = self._evaluate(operands[2], values)
                extents = shape.extents if isinstance(shape, ShapeValue) else None
                return self._allocate(extents, str(operands[3].value), "a tensor")
            if op.name in ("relax.call_builtin_with_ctx", "relax.vm.call_tir_dyn"):
                op, operands = operands[0], list(operands[1].fields)
            elif op.name in ("relax.call_pure_packed", "relax.call_inplace_packed"):
                op, operands = operands[0], operands[1:]
            else:
                return None
        args = [self._evaluate(operand, values) for operand in operands]
        if isinstance(op, relax.ExternFunc):
            return self._extern(str(op.global_symbol), args, call)
        if isinstance(op, ir.GlobalVar):
            function = self._functions.get(op.name_hint)
            if isinstance(function, tirx.PrimFunc):
                return self._call_primfunc(op.name_hint, function, args)
        function = self._evaluate(op, values)
        return self.invoke(function, args) if isinstance(function, FunctionValue) else None

    def _call_primfunc(self, name: str, func: tirx.PrimFunc, args: list[object]) -> object:
        # A dynamic call passes its scalars as one shape.
        if args and isinstance(args[-1], ShapeValue):
            args = [*args[:-1], *args[-1].extents]
        if func.attrs and func.attrs.get("tirx.is_host_func", False):
            return _run_on_host(func, args)
        self.tally.call(name, self._profiler(name, func, args))
        return None

    def _extern(self, name: str, args: list[object], call: ir.Call) -> object:
        if name in builtins.HANDLERS:
            return builtins.HANDLERS[name](args)
        if builtins.is_silent(name):
            return None
        if name.endswith("_graph.run_or_capture") and isinstance(args[0], FunctionValue):
            captured = args[1] if isinstance(args[1], tuple) else ()
            function = args[0]
            return self.tally.launch_graph(lambda: self.invoke(function, captured))
        if name.endswith("_graph.get_cached_alloc") and isinstance(args[0], FunctionValue):
            return self.invoke(args[0], ())
        if name == "vm.builtin.invoke_closure" and isinstance(args[0], FunctionValue):
            return self.invoke(args[0], args[1:])
        if name in builtins.COPYING:
            if self._on_device:
                self.tally.launch(name, "", "copy")
            return self.value_of_type(call.ty, allocate=self._on_device)
        self.tally.launch(name, "", "library")
        return self.value_of_type(call.ty, allocate=True)

    def _allocate(self, shape: tuple[int | None, ...] | None, dtype: str, what: str) -> TensorValue:
        allocation = next(self._fresh)
        if shape is None or None in shape:
            self.tally.caveats.append(f"{self._active[-1]}: {what} of unknown shape is left out")
        else:
            known = [extent for extent in shape if extent is not None]
            self.tally.allocations[allocation] = (prod(known) * tensor_bits(dtype) + 7) // 8
        return TensorValue(shape, dtype, allocation)


def _trips(args: Sequence[object]) -> int | None:
    """Return the trips that a call of a loop's function makes, if they are known."""
    return args[0].extents[1] if args and isinstance(args[0], ShapeValue) else None


def _run_on_host(func: tirx.PrimFunc, args: list[object]) -> object:
    """Run a host function that computes extents from extents in the shape heap."""
    env, result = Env(), None
    for param, arg in zip(func.params, args, strict=True):
        if isinstance(arg, int):
            env.values[param] = arg
        elif isinstance(arg, Heap):
            env.heaps[param] = arg.slots
    statements = func.body.seq if isinstance(func.body, tirx.SeqStmt) else [func.body]
    for stmt in statements:
        if isinstance(stmt, tirx.BufferStore) and stmt.buffer in env.heaps:
            slot = env.evaluate(stmt.indices[0])
            if slot is not None:
                env.heaps[stmt.buffer][slot] = env.evaluate(stmt.value)
        elif isinstance(stmt, tirx.stmt.Return):
            result = env.evaluate(stmt.value)
        elif isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
            result = env.evaluate(stmt.value.args[0])
    return result


# The virtual machine's builtins: which move shapes about, which copy, which launch.
#
# A builtin that is not listed here is counted as a library call, so that nothing is lost.
# The instruction set of match_shape and make_shape (tvm/runtime/vm/builtin.h).
_STORE_TO_HEAP = 1
_LOAD_FROM_HEAP = 1

# Copy between device and host; on a CPU they hand over the same memory.
COPYING = frozenset(
    {"vm.builtin.to_device", "vm.builtin.tensor_to_shape", "vm.builtin.read_if_cond"}
)

_SILENT = frozenset(
    {
        "vm.builtin.check_tensor_info",
        "vm.builtin.check_shape_info",
        "vm.builtin.check_prim_value_info",
        "vm.builtin.check_string_info",
        "vm.builtin.check_tuple_info",
        "vm.builtin.check_func_info",
        "vm.builtin.tuple_reset_item",
        "vm.builtin.null_value",
        "vm.builtin.memory_manager.clear",
        "vm.builtin.alloc_storage",
    }
)


def is_silent(name: str) -> bool:
    """Whether a builtin launches nothing, copies nothing and has no value of interest."""
    return name in _SILENT


def _alloc_shape_heap(args: Sequence[object]) -> object:
    return Heap([None] * args[0]) if isinstance(args[0], int) else None


def _match_shape(args: Sequence[object]) -> object:
    value, heap, rank = args[:3]
    extents: tuple[int | None, ...] | None = None
    if isinstance(value, TensorValue):
        extents = value.shape
    elif isinstance(value, ShapeValue):
        extents = value.extents
    if extents is not None and len(extents) != rank:
        extents = None  # the model computes them while it runs
    if isinstance(heap, Heap) and isinstance(rank, int) and extents is not None:
        for axis in range(rank):
            _store(heap, args[3 + 2 * axis], args[4 + 2 * axis], extents[axis])
    return None


def _match_prim_value(args: Sequence[object]) -> object:
    value, heap, code, slot = args[:4]
    if isinstance(heap, Heap):
        _store(heap, code, slot, value if isinstance(value, int) else None)
    return None


def _make_shape(args: Sequence[object]) -> object:
    heap, rank = args[:2]
    if not isinstance(rank, int):
        return None
    pairs = zip(args[2 : 2 + 2 * rank : 2], args[3 : 3 + 2 * rank : 2], strict=True)
    return ShapeValue(tuple(_load(heap, code, slot) for code, slot in pairs))


def _make_prim_value(args: Sequence[object]) -> object:
    return _load(*args[:3])


def _reshape(args: Sequence[object]) -> object:
    tensor, shape = args[:2]
    if isinstance(tensor, TensorValue):
        extents = shape.extents if isinstance(shape, ShapeValue) else None
        return TensorValue(extents, tensor.dtype, tensor.allocation)
    return None


def _shape_of(args: Sequence[object]) -> object:
    if isinstance(args[0], TensorValue) and args[0].shape is not None:
        return ShapeValue(args[0].shape)
    return None


def _tuple_getitem(args: Sequence[object]) -> object:
    items, index = args[:2]
    return items[index] if isinstance(items, tuple) and isinstance(index, int) else None


def _make_closure(args: Sequence[object]) -> object:
    function = args[0]
    if isinstance(function, FunctionValue):
        bound = function.bound + tuple(args[1:])
        return FunctionValue(function.function, function.name, bound)
    return None


HANDLERS: dict[str, Callable[[Sequence[object]], object]] = {
    "vm.builtin.alloc_shape_heap": _alloc_shape_heap,
    "vm.builtin.match_shape": _match_shape,
    "vm.builtin.match_prim_value": _match_prim_value,
    "vm.builtin.make_shape": _make_shape,
    "vm.builtin.make_prim_value": _make_prim_value,
    "vm.builtin.reshape": _reshape,
    "vm.builtin.shape_of": _shape_of,
    "vm.builtin.copy": lambda args: args[0],
    # Copies only where a device cannot offset pointers, or an offset is unaligned.
    "vm.builtin.ensure_zero_offset": lambda args: args[0],
    "vm.builtin.tuple_getitem": _tuple_getitem,
    "vm.builtin.make_tuple": lambda args: tuple(args),
    "vm.builtin.make_closure": _make_closure,
    "runtime.TVMTensorCreateView": _reshape,
}


def _store(heap: Heap, code: object, slot: object, extent: int | None) -> None:
    if code == _STORE_TO_HEAP and isinstance(slot, int):
        heap.slots[slot] = extent


def _load(heap: object, code: object, operand: object) -> int | None:
    if not isinstance(operand, int):
        return None
    if code == _LOAD_FROM_HEAP:
        return heap.slots[operand] if isinstance(heap, Heap) else None
    return operand
