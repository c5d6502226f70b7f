"""Results of a call: tensors in order, in memory of their own, or in the caller's arrays."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm_ffi

from ...errors import UserError
from ...signature import TensorSpec
from .tensors import as_declared, copy_to, to_numpy, write_into

_TUPLES = (tvm_ffi.Array, tuple, list)
_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")


def leaves(result: Any) -> list[Any]:
    """List the tensors of a result in order; a function may return tuples within tuples."""
    if not isinstance(result, _TUPLES):
        return [result]
    return [leaf for field in result for leaf in leaves(field)]


def chosen(result: Any, count: int, places: Sequence[int]) -> list[Any]:
    """List some of a result's tensors; most functions return one, or one tuple of them.

    Parameters
    ----------
    count
        How many tensors the result has.
    places
        Numbers of those that are wanted: making an object of a tensor takes as long as a kernel.
    """
    if type(result) is not tvm_ffi.Array:
        return [result for _ in places]
    if len(result) == count:
        fields = [_item(result, place) for place in places]
        if not any(type(field) is tvm_ffi.Array for field in fields):
            return fields
    found = leaves(result)
    return [found[place] for place in places]


def own(
    results: Sequence[tvm_ffi.Tensor],
    specs: Sequence[TensorSpec],
    device: tvm_ffi.Device,
    held: Collection[int],
    in_place: Collection[str],
) -> list[Any]:
    """Copy results to memory of their own, which the caller may write to.

    A model may return an input, a weight, or the same tensor twice. What is written in place stays
    in its place.

    Parameters
    ----------
    held
        Addresses of inputs and weights.
    in_place
        Names of outputs that lie where an input does.
    """
    on_host, seen = device.type == "cpu", set(held)
    owned: list[Any] = []
    for spec, tensor in zip(specs, results, strict=True):
        value = to_numpy(tensor) if on_host else tensor
        if spec.storage:
            value = as_declared(value, spec.dtype)
        pointer = tensor.data_ptr()
        if spec.name not in in_place and pointer in seen:
            value = value.copy() if on_host else copy_to(tensor, device)
        seen.add(pointer)
        owned.append(value)
    return owned


def write_out(out: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy results into the caller's arrays, none of them unless all fit."""
    for name, array in out.items():
        found, wanted = _describe(array), _describe(outputs[name])
        if found != wanted:
            raise UserError(f"the array for output {name!r} has {found}", wanted)
    for name, array in out.items():
        write_into(array, outputs[name], f"the array for output {name!r}")
    return dict(out)


def _describe(array: Any) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    return f"shape {tuple(array.shape)} and dtype {dtype}"
