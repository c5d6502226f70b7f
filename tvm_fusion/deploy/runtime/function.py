"""One function of a loaded model, with some of its inputs fixed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from ...errors import UserError
from ...signature import DimRange, Signature
from . import arguments
from .artifact.call_tree import flat_inputs, nested
from .artifact.manifest import INTO
from .direct import DeviceInputs, DirectInputs, DirectOutputs, DirectResults
from .results import leaves, own, write_out
from .staged import StagedInputs
from .tensors import (
    ALIGNMENT,
    as_array,
    as_stored,
    check_writable,
    copy_to,
    shares_memory,
    to_tensor,
    write_into,
)
from .torch_tensors import from_torch, in_order, to_torch, torch_of

#: Takes tensors in order, and returns outputs in order.
Unchecked = Callable[[Sequence[Any]], list[Any]]

#: What the runtime says of extents that the inputs decide, and that fit nothing.
_DO_NOT_FIT = ("std::bad_alloc", "negative dimensions", "match_cast error")


class Function:
    """A function of a loaded model; :meth:`Executable.bind` makes those with fixed inputs.

    Attributes
    ----------
    name
        The function's.
    signature
        All of its inputs, the fixed ones too, and its outputs.
    in_place
        By input that a call writes to, the output that then lies there.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        dims: Mapping[str, DimRange],
        device: tvm_ffi.Device,
        weights: Sequence[tvm_ffi.Tensor],
        callee: Callable[[str], Any],
        fixed: Mapping[str, Any] | None = None,
        in_place: Mapping[str, str] | None = None,
        destinations: Sequence[str] = (),
        alignment: int | None = ALIGNMENT,
        weights_as_tuple: bool = False,
    ) -> None:
        self.name, self.signature, self.in_place = name, signature, dict(in_place or {})
        self._dims, self._device, self._weights = dims, device, list(weights)
        self._callee, self._destinations, self._alignment = callee, destinations, alignment
        self._weights_as_tuple = weights_as_tuple
        self._weight_arguments = (
            [tvm_ffi.convert(self._weights)] if weights_as_tuple else self._weights
        )
        fixed = fixed or {}
        self._specs = [s for s in signature.inputs if s.name not in fixed]
        self._labels = [f"input {spec.name!r}" for spec in self._specs]
        self._flat_names = frozenset(spec.name for spec in self._specs)
        self._names = [spec.name for spec in signature.outputs]
        specs = [s for s in signature.inputs if s.name in fixed]
        labels = [f"input {spec.name!r}" for spec in specs]
        tensors, self._extents = self._to_device(specs, labels, fixed, {})
        self._arrays = self._in_place_arrays(fixed)
        self._fixed = dict(zip((spec.name for spec in specs), tensors, strict=True))
        self._copies = self._to_copy_back(self._arrays, specs, tensors)
        self._slots: list[Any] = [self._fixed.get(spec.name) for spec in signature.inputs]
        self._free = [i for i, fixed in enumerate(self._slots) if fixed is None]
        self._fixed_addresses = frozenset(t.data_ptr() for t in (*tensors, *self._weights))
        self._prepare_direct(tensors)

    def _prepare_direct(self, fixed: Sequence[tvm_ffi.Tensor]) -> None:
        """Decide whether calls may go without copies and general checks, which is optional."""
        has_other = any(s.storage for s in (*self._specs, *self.signature.outputs))
        is_fixed = self._arrays.keys() == self.in_place.keys() and not self._copies
        on_device = self._device.type != "cpu" and is_fixed and not has_other
        self._on_device = DeviceInputs(self._specs, self._device) if on_device else None
        self._staged = StagedInputs(self._direct_inputs(), self._device) if on_device else None
        outputs = [spec for spec in self.signature.outputs if spec.name in self._destinations]
        on_host = self._device.type == "cpu" and not has_other
        is_own = on_host and not self.in_place and bool(outputs)
        self._results = DirectResults(outputs, [*fixed, *self._weights]) if is_own else None
        self._is_direct = on_host and self._alignment is None
        self._inputs = self._direct_inputs() if self._is_direct else None
        self._tensors: DirectInputs | None = None  # of PyTorch, once a tensor is seen
        # What is no destination may be an input or a weight, which a caller must not get.
        kept = {*self._destinations, *self.in_place.values()}
        has_own = on_device or (kept.issuperset(self._names) and not self._copies)
        self._outputs = DirectOutputs(self._names, self.in_place, self._arrays) if has_own else None
        self._is_read = all(np.dtype(s.dtype).kind != "V" for s in self.signature.outputs)

    def _direct_inputs(self, torch: Any = None) -> DirectInputs:
        return DirectInputs(self._specs, self._dims, self._extents, self.signature.equal, torch)

    def __repr__(self) -> str:
        return f"<function {self.name!r} of inputs {[spec.name for spec in self._specs]}>"

    def __call__(
        self, /, *positional: Any, out: Mapping[str, Any] | None = None, **inputs: Any
    ) -> Any:
        """Call it with inputs in order or by name; as :meth:`Executable.__call__`."""
        if not positional and self._flat_names.issuperset(inputs):
            return self.run(inputs, out=out)
        call = None if self._fixed else self.signature.call
        if call is None:
            names = [spec.name for spec in self._specs]
            return self.run(arguments.by_name(names, positional, inputs), out=out)
        return nested(call["results"], self._stateful(flat_inputs(call, positional, inputs), out))

    def _stateful(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        """Run a module that may change its buffers and inputs: the caller's arrays are changed."""
        changed = [name for name in self._names if name in inputs and name not in self.in_place]
        for name in changed:
            check_writable(inputs[name], f"input {name!r}, which is written to,")
        outputs = self.run(inputs, out=out)
        for name in changed:
            write_into(inputs[name], outputs[name], f"input {name!r}")
        return outputs

    def bind(self, inputs: Mapping[str, Any]) -> Function:
        """Fix further inputs; see :meth:`Executable.bind`."""
        arguments.check_names(self._specs, inputs, is_complete=False)
        return Function(
            self.name,
            self.signature,
            self._dims,
            self._device,
            self._weights,
            self._callee,
            {**self._fixed, **self._arrays, **inputs},
            self.in_place,
            self._destinations,
            self._alignment,
            self._weights_as_tuple,
        )

    def run(
        self, inputs: Mapping[str, Any], *, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call it with inputs by any name; as :meth:`Executable.run`."""
        torch = torch_of(inputs.values()) if isinstance(inputs, Mapping) else None
        try:
            if torch is None:
                return self._run(inputs, out)
            return self._run_torch(torch, inputs, out)
        except (RuntimeError, ValueError) as error:
            if not any(text in str(error) for text in _DO_NOT_FIT):
                raise
            raise UserError(
                "the model's tensors do not fit the extents computed from these inputs",
                "extents that are not too large for memory, and that are valid where the model "
                "broadcasts, reshapes, splits or takes elements",
            ) from error

    def unchecked(self, inputs: Sequence[Any]) -> Unchecked | None:
        """Return a call without checks and names, for callers that check themselves.

        Parameters
        ----------
        inputs : sequence of torch.Tensor
            What is not fixed, in order: like those of all calls to come.

        Returns
        -------
        callable or None
            ``None`` where inputs or outputs need conversions. An output that aliases an
            input is ``None``.
        """
        named = dict(zip((spec.name for spec in self._specs), inputs, strict=True))
        torch = torch_of(inputs)
        if torch is None or not self._is_direct or self._outputs is None:
            return None
        if self._direct_inputs(torch).take(named) is None:
            return None
        outputs = self._outputs
        return lambda inputs: outputs.ordered(self._result(inputs))

    def _run_torch(
        self, torch: Any, inputs: Mapping[str, Any], out: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Call it with PyTorch's tensors, and return such."""
        if out is None and self._is_direct and self._outputs is not None:
            if self._tensors is None:
                self._tensors = self._direct_inputs(torch)
            taken = self._tensors.take(inputs)
            if taken is not None:
                outputs = self._outputs.named(self._result(taken[0]), inputs)
                if not self._arrays:
                    return outputs
                return {name: to_torch(torch, value) for name, value in outputs.items()}
        given = {name: from_torch(torch, value) for name, value in inputs.items()}
        if self._device.type == "cpu":
            outputs = self._run(given, out)
        else:
            with in_order(torch, self._device):
                outputs = self._run(given, out)
        return {name: to_torch(torch, value) for name, value in outputs.items()}

    def _run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        if out is None and self._on_device is not None and self._staged is not None:
            tensors = self._on_device.take(inputs) or self._staged.take(inputs)
            if tensors:
                assert self._outputs is not None
                result = self._result(tensors)
                return self._outputs.named(result, inputs, self._unaliased(tensors))
        arguments.check_out(self.signature, out)
        direct = self._inputs.take(inputs) if self._inputs is not None else None
        if direct is not None and not out and self._outputs is not None and self._is_read:
            return self._outputs.named(self._result(direct[0]), inputs, np.from_dlpack)
        if direct is None:
            given, extents = self._to_device(self._specs, self._labels, inputs, self._extents)
        else:
            given, extents = [tvm_ffi.from_dlpack(array) for array in direct[0]], direct[1]
        if out and self._results is not None:
            outputs = self._run_into(out, given, extents)
            if outputs is not None:
                return outputs
        in_place = self._in_place_arrays(inputs)
        outputs = self._named(self._result(given), given)
        to_copy_back = {**self._copies, **self._to_copy_back(in_place, self._specs, given)}
        for name, array in to_copy_back.items():
            write_into(array, outputs[self.in_place[name]], f"input {name!r}")
        for name, array in {**self._arrays, **in_place}.items():
            outputs[self.in_place[name]] = array
        return outputs if out is None else {**outputs, **write_out(out, outputs)}

    def _result(self, given: Sequence[Any], function: str = "", into: Sequence[Any] = ()) -> Any:
        """Call the library's function with tensors in order, and return what it does."""
        callee = self._callee(function or self.name)
        return callee(*self._in_call_order(given), *self._weight_arguments, *into)

    def extents(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Tell the extents of symbolic dimensions that inputs have; checks them as a call does."""
        return self._to_device(self._specs, self._labels, inputs, self._extents)[1]

    def _in_call_order(self, given: Sequence[Any]) -> Sequence[Any]:
        """List all inputs in call order, with the fixed ones."""
        if not self._fixed:
            return given
        values = self._slots.copy()
        for place, value in zip(self._free, given, strict=True):
            values[place] = value
        return values

    def _named(self, result: Any, given: Sequence[tvm_ffi.Tensor]) -> dict[str, Any]:
        """Name results, each in memory of its own."""
        addresses = self._fixed_addresses.union(tensor.data_ptr() for tensor in given)
        in_place = set(self.in_place.values())
        tensors = leaves(result)
        owned = own(tensors, self.signature.outputs, self._device, addresses, in_place)
        return dict(zip(self._names, owned, strict=True))

    def _unaliased(
        self, given: Sequence[tvm_ffi.Tensor]
    ) -> Callable[[tvm_ffi.Tensor], tvm_ffi.Tensor]:
        """Return a reader that copies results which alias an input or another result."""
        seen = {tensor.data_ptr() for tensor in given}

        def read(tensor: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
            at = tensor.data_ptr()
            if at in seen or at in self._fixed_addresses:
                return copy_to(tensor, self._device)
            seen.add(at)
            return tensor

        return read

    def _run_into(
        self, out: Mapping[str, Any], given: list[tvm_ffi.Tensor], extents: Mapping[str, int]
    ) -> dict[str, Any] | None:
        """Let kernels write into the caller's arrays; ``None`` where results must be copied."""
        assert self._results is not None
        destinations = self._results.take(out, extents, given)
        if destinations is None:
            return None
        tensors = [tensor for _, tensor in destinations]
        result = self._result(given, self.name + INTO, tensors)
        pairs = zip(self._results.specs, destinations, strict=True)
        written = {spec.name: array for spec, (array, _) in pairs}
        if len(written) == len(self._names):
            return written
        return {**self._named(result, given), **written}

    def _in_place_arrays(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """List the arrays of inputs that a call writes to, and check that they are writable."""
        found = {name: inputs[name] for name in self.in_place if name in inputs}
        for name, array in found.items():
            check_writable(array, f"input {name!r}, which is written to,")
        return found

    @staticmethod
    def _to_copy_back(
        arrays: Mapping[str, Any], specs: Sequence[Any], tensors: Sequence[tvm_ffi.Tensor]
    ) -> dict[str, Any]:
        """List the arrays that are copied back after a call: their device tensors are copies."""
        pairs = zip((spec.name for spec in specs), tensors, strict=True)
        return {n: arrays[n] for n, t in pairs if n in arrays and not shares_memory(arrays[n], t)}

    def _to_device(
        self,
        specs: Sequence[Any],
        labels: Sequence[str],
        inputs: Mapping[str, Any],
        extents: Mapping[str, int],
    ) -> tuple[list[tvm_ffi.Tensor], dict[str, int]]:
        """Check arrays and bring them to the device."""
        values = arguments.order(specs, inputs)
        arrays = [
            as_array(value, spec.dtype, label)
            for value, spec, label in zip(values, specs, labels, strict=True)
        ]
        shapes, dtypes = [tuple(a.shape) for a in arrays], [_dtype_name(a.dtype) for a in arrays]
        known = arguments.check(specs, shapes, dtypes, self._dims, extents, self.signature.equal)
        tensors = [
            to_tensor(as_stored(array, spec.storage), self._device, label, self._alignment)
            for array, spec, label in zip(arrays, specs, labels, strict=True)
        ]
        return tensors, known


_dtype_name = functools.lru_cache(str)  # numpy takes microseconds
