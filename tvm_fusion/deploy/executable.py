"""A loaded model, called with arrays by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import tvm_ffi

from ..errors import UserError
from . import arguments, manifest
from .tensors import as_array, copy_to, to_numpy, to_tensor, write_into

_POOLED_ALLOCATOR = 2  # TVM's AllocatorType


class Executable:
    """A loaded model; made by :func:`tvm_fusion.load`.

    Calls may come from several threads: each has a virtual machine of its own over shared weights.

    Attributes
    ----------
    manifest : dict
        What :mod:`tvm_fusion.deploy.manifest` documents.
    signatures : dict of str to Signature
        By function.
    dims : dict of str to DimRange
        Ranges of symbolic dimensions.
    """

    def __init__(
        self,
        found: dict[str, Any],
        library: tvm_ffi.Module,
        device: tvm_ffi.Device,
        weights: Mapping[str, tvm_ffi.Tensor],
    ):
        self.manifest = found
        self._library, self._device = library, device
        self._weights = {
            name: [weights[weight] for weight in entry["weights"]]
            for name, entry in found["functions"].items()
        }
        self.dims = manifest.dims_from_json(found["dims"])
        self.signatures = {
            name: manifest.signature_from_json(entry) for name, entry in found["functions"].items()
        }
        self._local = threading.local()

    def __repr__(self) -> str:
        source, target = self.manifest["source"], self.manifest["target"]["text"]
        inputs = {name: [s.name for s in sig.inputs] for name, sig in self.signatures.items()}
        return f"<Executable of {source} for {target}, inputs {inputs}>"

    def __call__(
        self, /, *positional: Any, out: Mapping[str, Any] | None = None, **inputs: Any
    ) -> dict[str, Any]:
        """Run ``main``; see :meth:`run` for names that cannot be written as keywords.

        Parameters
        ----------
        out : mapping of str to array, optional
            Results are written into these arrays, by output name.
        **inputs : array
            numpy arrays or anything with ``__dlpack__``, by the names in the model.

        Returns
        -------
        dict of str to array
            By output name: numpy arrays, or ``tvm_ffi.Tensor`` (DLPack) for a model on a GPU; where
            ``out`` names the output, the array that it gave.

        Raises
        ------
        UserError
            For a wrong or missing name, a wrong shape or dtype.
        """
        if positional:
            names = ", ".join(repr(s.name) for s in self.signatures["main"].inputs)
            raise UserError("an input without a name", f"inputs by name: {names}")
        return self.run(inputs, out=out)

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        function: str = "main",
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run any function of the model; parameters as in :meth:`__call__`."""
        if function not in self.signatures:
            known = ", ".join(map(repr, self.signatures))
            raise UserError(f"the model has no function {function!r}", f"one of {known}")
        signature = self.signatures[function]
        arguments.check_out(signature, out)
        specs = signature.inputs
        labels = [f"input {spec.name!r}" for spec in specs]
        arrays = [
            as_array(value, spec.dtype, label)
            for value, spec, label in zip(
                arguments.order(signature, inputs), specs, labels, strict=True
            )
        ]
        shapes, dtypes = [tuple(a.shape) for a in arrays], [str(a.dtype) for a in arrays]
        arguments.check(specs, shapes, dtypes, self.dims)
        tensors = [
            to_tensor(a, self._device, label) for a, label in zip(arrays, labels, strict=True)
        ]
        held = self._weights[function]
        result = self._machine()[function](*tensors, *held)
        names = [spec.name for spec in signature.outputs]
        results = self._owned(_leaves(result), [*tensors, *held])
        outputs = dict(zip(names, results, strict=True))
        return outputs if out is None else {**outputs, **_write_out(out, outputs)}

    def synchronize(self) -> None:
        """Wait until the device has finished everything that was launched."""
        if self._device.type != "cpu":
            tvm_ffi.get_global_func("runtime.Device_StreamSync")(self._device, 0)

    def _machine(self) -> Any:
        if not hasattr(self._local, "machine"):
            machine = self._library["vm_load_executable"]()
            cpu = tvm_ffi.device("cpu", 0)
            places = [self._device] if self._device == cpu else [self._device, cpu]
            setup = [
                n for d in places for n in (d.dlpack_device_type(), d.index, _POOLED_ALLOCATOR)
            ]
            machine["vm_initialization"](*setup)
            self._local.machine = machine
        return self._local.machine

    def _owned(self, results: list[Any], others: list[tvm_ffi.Tensor]) -> list[Any]:
        """Give each result memory of its own, which the caller may write to.

        A model may return an input, a weight, or the same tensor twice.
        """
        on_host = self._device.type == "cpu"
        seen = {tensor.data_ptr() for tensor in others}
        owned: list[Any] = []
        for tensor in results:
            value = to_numpy(tensor) if on_host else tensor
            if tensor.data_ptr() in seen:
                value = value.copy() if on_host else copy_to(tensor, self._device)
            seen.add(tensor.data_ptr())
            owned.append(value)
        return owned


def _leaves(result: Any) -> list[Any]:
    """List the tensors of a result in order; a function may return tuples within tuples."""
    if not isinstance(result, tvm_ffi.Array):
        return [result]
    return [leaf for field in result for leaf in _leaves(field)]


def _write_out(out: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy results into the caller's arrays, none of them unless all fit."""
    for name, array in out.items():
        value = outputs[name]
        found = f"shape {tuple(array.shape)} and dtype {_dtype(array)}"
        wanted = f"shape {tuple(value.shape)} and dtype {_dtype(value)}"
        if found != wanted:
            raise UserError(f"the array for output {name!r} has {found}", wanted)
    for name, array in out.items():
        write_into(array, outputs[name], f"the array for output {name!r}")
    return dict(out)


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")
