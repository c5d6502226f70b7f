"""Signatures of Relax functions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from ...core.tir.whole_extents import steps_of
from ...signature import Signature, TensorSpec
from .extents import from_tir


def tensor_spec(name: str, ty: Any) -> TensorSpec:
    """Describe one tensor; ``?`` stands for an extent that is known only at run time."""
    if ty.shape is not None:
        shape = tuple(from_tir(extent) for extent in ty.shape)
    else:
        shape = ("?",) * max(ty.ndim, 0)
    return TensorSpec(name, shape, str(ty.dtype.dtype if hasattr(ty.dtype, "dtype") else ty.dtype))


def signature_of(
    func: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Signature | None:
    """Describe a Relax function.

    Parameters
    ----------
    func : tvm.relax.Function
        A function over tensors; tuples of outputs are flattened, as the runtime returns them.
    input_names, output_names
        The model's names; by default the parameters' own, and ``output_0``, ``output_1``, ...

    Returns
    -------
    Signature or None
        None for a function that takes or returns something other than tensors, such as a cache.
    """
    outputs, steps = _flatten(func.ret_ty), steps_of(func)
    params = [p for p in func.params if not (steps and isinstance(p.ty, relax.ShapeType))]
    if not all(isinstance(ty, relax.TensorType) for ty in [*(p.ty for p in params), *outputs]):
        return None
    if output_names and len(output_names) != len(outputs):
        return None  # an output is a tuple
    input_names = input_names or [param.name for param in params]
    output_names = output_names or [f"output_{i}" for i in range(len(outputs))]
    return Signature(
        tuple(tensor_spec(n, p.ty) for n, p in zip(input_names, params, strict=True)),
        tuple(tensor_spec(n, ty) for n, ty in zip(output_names, outputs, strict=True)),
    )


def with_storage(signature: Signature, dtypes: Mapping[str, str]) -> Signature:
    """Restore the model's dtype of inputs and outputs that are stored in another one.

    Parameters
    ----------
    dtypes
        By name, of some inputs and outputs.
    """

    def stored(spec: TensorSpec) -> TensorSpec:
        dtype = dtypes.get(spec.name, spec.dtype)
        return spec if dtype == spec.dtype else replace(spec, dtype=dtype, storage=spec.dtype)

    inputs, outputs = (tuple(map(stored, x)) for x in (signature.inputs, signature.outputs))
    return replace(signature, inputs=inputs, outputs=outputs)


def _flatten(ty: Any) -> list[Any]:
    if isinstance(ty, relax.TupleType):
        return [leaf for field in ty.fields for leaf in _flatten(field)]
    return [ty]
