"""A loaded model, called with arrays by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm_ffi

from ..errors import UserError
from ..signature import Signature
from . import arguments, manifest
from .tensors import to_numpy, to_tensor, write_into

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
        self._library, self._device, self._weights = library, device, weights
        self.dims = manifest.dims_from_json(found["dims"])
        self.signatures = {
            name: manifest.signature_from_json(entry) for name, entry in found["functions"].items()
        }
        self._local = threading.local()

    def __call__(self, *, out: Mapping[str, Any] | None = None, **inputs: Any) -> dict[str, Any]:
        """Run ``main``; see :meth:`run` for input names that are no Python identifiers.

        Parameters
        ----------
        out : mapping of str to array, optional
            Results are written into these arrays, by output name.
        **inputs : array
            numpy arrays or anything with ``__dlpack__``, by the names in the model.

        Returns
        -------
        dict of str to array
            By output name: numpy arrays, or ``tvm_ffi.Tensor`` (DLPack) for a model on a GPU.

        Raises
        ------
        UserError
            For a wrong name, shape or dtype.
        """
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
            known = ", ".join(self.signatures)
            raise UserError(f"the model has no function {function!r}", f"one of {known}")
        signature = self.signatures[function]
        given = arguments.order(signature, inputs)
        tensors = [to_tensor(_as_array(value), self._device) for value in given]
        arguments.check(
            signature.inputs,
            [tuple(t.shape) for t in tensors],
            [str(t.dtype) for t in tensors],
            self.dims,
        )
        held = [self._weights[name] for name in self.manifest["functions"][function]["weights"]]
        result = self._machine()[function](*tensors, *held)
        results = list(result) if isinstance(result, tvm_ffi.Array | tuple | list) else [result]
        named = dict(zip([spec.name for spec in signature.outputs], results, strict=True))
        on_host = self._device.type == "cpu"
        outputs = {k: to_numpy(v) if on_host else v for k, v in named.items()}
        if out is not None:
            _write_out(out, outputs, signature)
        return outputs

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


def _as_array(value: Any) -> Any:
    return value if hasattr(value, "__dlpack__") else np.asarray(value)


def _write_out(out: Mapping[str, Any], outputs: dict[str, Any], signature: Signature) -> None:
    """Copy results into the caller's arrays, which then stand in for them."""
    names = [spec.name for spec in signature.outputs]
    for name, array in out.items():
        if name not in names:
            raise UserError(f"unknown output {name!r}", f"one of {', '.join(map(repr, names))}")
        value = outputs[name]
        found = f"shape {tuple(array.shape)} and dtype {_dtype(array)}"
        wanted = f"shape {tuple(value.shape)} and dtype {_dtype(value)}"
        if found != wanted:
            raise UserError(f"the array for output {name!r} has {found}", wanted)
        write_into(array, value)
        outputs[name] = array


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")
