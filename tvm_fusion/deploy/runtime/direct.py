"""Fast path of a call: arrays that need no conversion are passed to kernels without a copy.

Most calls pass numpy arrays, or on a device its tensors, of the right type and shape in contiguous
memory. Those go to the virtual machine as they are, without the conversions and the names of dtypes
that cost more than a small model. All others take the general way, which also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import tvm_ffi

from ...signature import DimRange, EqualExtents, TensorSpec
from . import arguments
from .tensors import ALIGNMENT, as_array, to_tensor


class DirectInputs:
    """Inputs of a function as numpy hands them out.

    Parameters
    ----------
    dims
        Ranges of symbolic dimensions.
    extents
        Extents of symbolic dimensions that fixed inputs have decided.
    equal
        Extents that have to be equal.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        dims: Mapping[str, DimRange],
        extents: Mapping[str, int],
        equal: Sequence[EqualExtents] = (),
    ) -> None:
        self._equal = tuple(equal)
        self._dims, self._extents = dims, dict(extents)
        self._symbolic = [s for s in specs if any(isinstance(e, str) for e in s.shape)]
        self._wanted = [
            (s.name, np.dtype(s.dtype), None if s in self._symbolic else s.shape) for s in specs
        ]
        self.is_possible = all(dtype.kind != "V" for _, dtype, _ in self._wanted)

    def take(self, inputs: Mapping[str, Any]) -> tuple[list[np.ndarray], dict[str, int]] | None:
        """List arrays in call order if kernels can read all of them in place, else ``None``.

        Returns
        -------
        (list of numpy.ndarray, dict of str to int) or None
            With the extents of symbolic dimensions.

        Raises
        ------
        UserError
            For symbolic dimensions that do not fit.
        """
        if type(inputs) is not dict:
            return None
        taken = []
        for name, dtype, shape in self._wanted:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None
            if shape is not None and array.shape != shape:
                return None
            # Contiguous, aligned to its elements, writable; of empty ones numpy exports no strides
            # that generated code takes.
            if not (array.flags.carray and array.size):
                return None
            taken.append(array)
        if len(inputs) != len(taken):
            return None
        if not self._symbolic:
            return taken, self._extents
        shapes = [inputs[spec.name].shape for spec in self._symbolic]
        dtypes = [spec.dtype for spec in self._symbolic]
        return taken, arguments.check(
            self._symbolic, shapes, dtypes, self._dims, self._extents, self._equal
        )


class DeviceInputs:
    """Inputs of a function as tensors that lie on its device, PyTorch's for example."""

    def __init__(self, specs: Sequence[TensorSpec], device: tvm_ffi.Device) -> None:
        self._wanted = [(spec.name, spec.shape, tvm_ffi.dtype(spec.dtype)) for spec in specs]
        self._device = device

    def take(self, inputs: Mapping[str, Any]) -> list[tvm_ffi.Tensor] | None:
        """List the tensors in call order if kernels can read all of them in place, else ``None``.

        Symbolic shapes are equal to none.
        """
        if type(inputs) is not dict or len(inputs) != len(self._wanted):
            return None
        taken = []
        for name, shape, dtype in self._wanted:
            tensor = inputs.get(name)
            if not isinstance(tensor, tvm_ffi.Tensor):
                if isinstance(tensor, np.ndarray) or not hasattr(tensor, "__dlpack__"):
                    return None
                try:
                    tensor = tvm_ffi.from_dlpack(tensor)
                except (BufferError, RuntimeError):  # a tensor that hands out no memory
                    return None
            if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
                return None
            if tensor.shape != shape or tensor.device != self._device or tensor.dtype != dtype:
                return None
            taken.append(tensor)
        return taken


def readers(specs: Iterable[TensorSpec]) -> list[Callable[[Any], np.ndarray]] | None:
    """List what turns each result into a numpy array; ``None`` if one has a type numpy lacks."""
    if any(np.dtype(spec.dtype).kind == "V" for spec in specs):
        return None
    return [np.from_dlpack for _ in specs]


class DirectResults:
    """The caller's arrays as memory that kernels write results into.

    Parameters
    ----------
    specs
        The results that the function takes as parameters, in their order.
    held
        What every call reads: weights and fixed inputs.
    """

    def __init__(self, specs: Sequence[TensorSpec], held: Iterable[tvm_ffi.Tensor]) -> None:
        self.specs = list(specs)
        self._wanted = [(s, np.dtype(s.dtype), _static(s.shape)) for s in specs]
        self._names = frozenset(spec.name for spec in specs)
        self._held = [_range(tensor) for tensor in held]

    def take(
        self,
        out: Mapping[str, Any],
        extents: Mapping[str, int],
        given: Sequence[tvm_ffi.Tensor],
    ) -> list[tuple[Any, tvm_ffi.Tensor]] | None:
        """Return an array for each result, the caller's or new, with a tensor over its memory.

        Parameters
        ----------
        extents
            Of symbolic dimensions.
        given
            The inputs of this call.

        Returns
        -------
        list of (array, tensor) or None
            ``None`` if a shape is not known before the call, or if an array is for a result that is
            no parameter, has another shape or dtype, is not contiguous or shares memory with an
            input, a weight or another array of ``out``: kernels may write a result before they have
            read all inputs.
        """
        if not all(name in self._names for name in out):
            return None
        taken: list[tuple[Any, tvm_ffi.Tensor]] = []
        for spec, dtype, static in self._wanted:
            shape = static or _evaluated(spec.shape, extents)
            if shape is None or 0 in shape:
                return None
            array = out.get(spec.name)
            if array is None:
                array = np.empty(shape, dtype)
            tensor = _writable(array, shape, dtype)
            if tensor is None:
                return None
            taken.append((array, tensor))
        others = [*map(_range, given), *self._held]
        written = [_range(tensor) for _, tensor in taken]
        for i, one in enumerate(written):
            if any(_overlap(one, other) for other in (*written[:i], *others)):
                return None
        return taken


def _static(shape: Sequence[int | str]) -> tuple[int, ...] | None:
    return tuple(shape) if all(isinstance(e, int) for e in shape) else None  # type: ignore[arg-type]


def _evaluated(shape: Sequence[int | str], extents: Mapping[str, int]) -> tuple[int, ...] | None:
    found = [arguments.evaluate(extent, extents) for extent in shape]
    return None if None in found else tuple(found)  # type: ignore[arg-type]


def _writable(array: Any, shape: tuple[int, ...], dtype: np.dtype) -> tvm_ffi.Tensor | None:
    """View an array as the tensor that a kernel writes, if it is one."""
    if isinstance(array, np.ndarray):
        if array.shape != shape or array.dtype != dtype or not array.flags.carray:
            return None
        return to_tensor(array, _CPU, alignment=None)
    tensor: Any = as_array(array, "", "an output")
    fits = tuple(tensor.shape) == shape and np.dtype(str(tensor.dtype)) == dtype
    if not fits or tensor.device != _CPU or not tensor.is_contiguous():
        return None
    return tensor if tensor.data_ptr() % dtype.itemsize == 0 else None


def _range(tensor: tvm_ffi.Tensor) -> tuple[int, int]:
    """Return the begin and end addresses of a contiguous tensor."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.dtype.itemsize


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


_CPU = tvm_ffi.device("cpu", 0)
