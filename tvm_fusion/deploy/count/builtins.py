"""The virtual machine's builtins: which move shapes about, which copy, which launch.

A builtin that is not listed here is counted as a library call, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .values import FunctionValue, Heap, ShapeValue, TensorValue

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
