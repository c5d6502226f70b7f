"""Fast path of a call: arrays that need no conversion are passed to kernels without a copy.

Most calls pass numpy arrays, PyTorch's tensors, or on a device its tensors, of the right type and
shape in contiguous memory. Those go to the virtual machine as they are, without the conversions
and the names of dtypes that cost more than a small model. All others take the general way, which
also says what is wrong.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import tvm_ffi

from ...signature import DimRange, EqualExtents, TensorSpec
from . import arguments
from .results import chosen
from .tensors import ALIGNMENT, as_array, to_tensor
from .torch_tensors import hands_out_tensors, readable_tensors


class DirectInputs:
    """Inputs of a function as numpy hands them out, or PyTorch on the CPU.

    Parameters
    ----------
    dims
        Ranges of symbolic dimensions.
    extents
        Extents of symbolic dimensions that fixed inputs have decided.
    equal
        Extents that have to be equal.
    torch : module, optional
        PyTorch, whose tensors they are.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        dims: Mapping[str, DimRange],
        extents: Mapping[str, int],
        equal: Sequence[EqualExtents] = (),
        torch: Any = None,
    ) -> None:
        self._equal = tuple(equal)
        self._dims, self._extents = dims, dict(extents)
        self._symbolic = [s for s in specs if any(isinstance(e, str) for e in s.shape)]
        self._checked: tuple[list[Any], dict[str, int]] = [], {}  # of the call before
        dtypes: list[Any]
        if torch is None:
            self._is_readable: Callable[[Any, Any], bool] = _is_readable
            dtypes = [np.dtype(spec.dtype) for spec in specs]
            self._is_possible = all(dtype.kind != "V" for dtype in dtypes)
        else:
            self._is_readable = readable_tensors(torch)
            dtypes = [getattr(torch, spec.dtype, None) for spec in specs]
            self._is_possible = None not in dtypes and hands_out_tensors(torch)
        self._wanted = [
            (s.name, dtype, None if s in self._symbolic else s.shape)
            for s, dtype in zip(specs, dtypes, strict=True)
        ]

    def take(self, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]] | None:
        """List arrays in call order if kernels can read all of them in place, else ``None``.

        Returns
        -------
        (list of array, dict of str to int) or None
            With the extents of symbolic dimensions.

        Raises
        ------
        UserError
            For symbolic dimensions that do not fit.
        """
        if type(inputs) is not dict or not self._is_possible:
            return None
        taken = []
        for name, dtype, shape in self._wanted:
            array: Any = inputs.get(name)
            if not self._is_readable(array, dtype):
                return None
            if shape is not None and array.shape != shape:
                return None
            taken.append(array)
        if len(inputs) != len(taken):
            return None
        if not self._symbolic:
            return taken, self._extents
        shapes = [inputs[spec.name].shape for spec in self._symbolic]
        checked = self._checked  # other threads may replace it
        if shapes != checked[0]:
            dtypes = [spec.dtype for spec in self._symbolic]
            known = arguments.check(
                self._symbolic, shapes, dtypes, self._dims, self._extents, self._equal
            )
            self._checked = checked = shapes, known
        return taken, checked[1]


def _is_readable(array: Any, dtype: Any) -> bool:
    """Whether numpy's array is contiguous, aligned to its elements, writable, and not empty.

    Of empty ones numpy exports no strides that generated code takes.
    """
    if type(array) is not np.ndarray or array.dtype != dtype:
        return False
    return array.flags.carray and array.size != 0


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


class DirectOutputs:
    """Results of a function whose outputs have memory of their own, or lie where an input does.

    Parameters
    ----------
    in_place
        By input that is written to, the output that then lies there.
    kept
        The caller's arrays of such inputs that are fixed.
    """

    def __init__(
        self, names: Sequence[str], in_place: Mapping[str, str], kept: Mapping[str, Any]
    ) -> None:
        self._names, self._written, self._kept = names, in_place, kept
        self._own = [i for i, name in enumerate(names) if name not in in_place.values()]

    def ordered(self, result: Any) -> list[Any]:
        """List the results of a call in order, ``None`` for those that alias an input."""
        own = chosen(result, len(self._names), self._own)
        if not self._written:
            return own
        outputs: list[Any] = [None] * len(self._names)
        for place, value in zip(self._own, own, strict=True):
            outputs[place] = value
        return outputs

    def named(
        self, result: Any, inputs: Mapping[str, Any], read: Callable[[Any], Any] | None = None
    ) -> dict[str, Any]:
        """Name the results of a call with these inputs.

        Parameters
        ----------
        read
            Makes the caller's kind of array of a tensor, where that is another.
        """
        own: Iterable[Any] = chosen(result, len(self._names), self._own)
        own = own if read is None else map(read, own)
        if not self._written:
            return dict(zip(self._names, own, strict=True))
        outputs = dict.fromkeys(self._names)  # in their order
        outputs.update(zip([self._names[i] for i in self._own], own, strict=True))
        for name, output in self._written.items():
            outputs[output] = inputs[name] if name in inputs else self._kept[name]
        return outputs


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
