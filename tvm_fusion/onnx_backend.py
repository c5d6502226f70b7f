"""Run ONNX models through the interface of the onnx package, ``onnx.backend.base.Backend``.

``import tvm_fusion.onnx_backend as backend`` gives what ``onnxruntime.backend`` gives:
``backend.prepare(model, "CPU").run(inputs)``, and ``onnx.backend.test.BackendTest(backend.Backend,
__name__)`` for the standard's own tests.

A model is compiled when it is first run: for ranges of its symbolic dimensions around the extents
of the inputs, so that other sizes need no compilation, or where that is not possible for these
extents alone. Where an input carries a shape (axes, sizes, counts) that Relax cannot keep symbolic,
for its value, too. What was compiled is kept with the prepared model and, where the variable
``TVM_FUSION_CACHE`` or the option ``cache`` names a folder, on the disk for later processes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep, namedtupledict

from .compiler import compile
from .config import Options
from .deploy.cache.folder import FOLDER
from .deploy.runtime.load import load
from .deploy.runtime.tensors import to_numpy
from .device import cuda_devices
from .errors import UserError
from .frontend.onnx import dim_table
from .frontend.onnx_model.constants import shape_inputs
from .frontend.onnx_model.file import load as load_file
from .frontend.onnx_model.rewrite import without_optionals
from .frontend.onnx_model.sequences import element_type, elements_of, with_elements
from .signature import DimRange

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .deploy.runtime.executable import Executable

_TARGETS = {"CPU": "cpu", "CUDA": "cuda"}
# Programs of one model; the oldest goes.
_KEPT = 64
_LEAST_HIGH = 8  # of a range's upper end: batches


class PreparedModel(BackendRep):
    """A model on a device, compiled as its inputs ask for it.

    Parameters
    ----------
    model
        The model.
    target
        See :func:`tvm_fusion.compile`.
    ranges
        Whether to compile for ranges of symbolic dimensions first.
    cache
        As of :func:`tvm_fusion.compile`; by default where ``TVM_FUSION_CACHE`` is set.
    **options
        Fields of :class:`tvm_fusion.FusionConfig`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        target: str,
        *,
        ranges: bool = True,
        cache: bool | str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ):
        self._model, self._target, self._options = model, target, options
        self._cache = FOLDER in os.environ if cache is None else cache
        self._takes_ranges = ranges
        self._shapes = dim_table(without_optionals(model)).shapes
        stored = {tensor.name for tensor in model.graph.initializer}
        bound = {*stored, *options.get("constants", ())}
        self._inputs = [info.name for info in model.graph.input if info.name not in bound]
        self._outputs = [info.name for info in model.graph.output]
        self._types = {info.name: info.type for info in without_optionals(model).graph.input}
        self._carry_shapes = tuple(name for name in shape_inputs(model) if name not in bound)
        self._bound: tuple[str, ...] = ()
        self._programs: dict[Any, Executable] = {}
        self._static: set[tuple] = set()  # what could not be compiled for ranges

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Parameters
        ----------
        inputs : sequence, mapping or array
            Arrays in the order of the model's inputs, by their names, or the only one.
        **kwargs
            None: there are no options of a run.

        Returns
        -------
        tuple
            The outputs as numpy arrays, also by name.

        Raises
        ------
        UserError
            For a model that cannot be compiled, and for inputs that do not fit it.
        """
        if kwargs:
            raise UserError(f"option {next(iter(kwargs))!r} of a run", "none")
        feeds = self._feeds(inputs)
        program, bound = self._program(feeds)
        given = elements_of({name: v for name, v in feeds.items() if name not in bound})
        try:
            results = program.run(given)
        except UserError:
            if not self._takes_ranges:
                raise
            # It may hold for these extents what does not hold for all of a range.
            self._takes_ranges = False
            try:
                program, bound = self._program(feeds)
                results = program.run(given)
            finally:
                self._takes_ranges = True
        found = {
            name: v if isinstance(v, np.ndarray) else to_numpy(v) for name, v in results.items()
        }
        values = [_gathered(name, found) for name in self._outputs]
        return namedtupledict("Outputs", self._outputs)(*values)

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return {name: self._as_arrays(name, value) for name, value in inputs.items()}
        if not isinstance(inputs, (list, tuple)):
            inputs = [inputs]
        if len(inputs) != len(self._inputs):
            raise UserError(
                f"{len(inputs)} inputs", f"{len(self._inputs)}: {', '.join(self._inputs)}"
            )
        pairs = zip(self._inputs, inputs, strict=True)
        return {name: self._as_arrays(name, value) for name, value in pairs}

    def _as_arrays(self, name: str, value: Any) -> Any:
        """Make arrays of nested lists and numbers, in the model's dtype; of sequences, a list."""
        kind = self._types.get(name, onnx.TypeProto())
        elements = element_type(kind)
        if elements is not None and isinstance(value, (list, tuple)):
            return [_array(name, each, elements) for each in value]
        return _array(name, value, kind)

    def _program(self, feeds: Mapping[str, Any]) -> tuple[Executable, tuple[str, ...]]:
        """Find or make the program for the extents, and where needed the values, of inputs."""
        try:
            return self._specialized(feeds, self._bound), self._bound
        except UserError:
            if self._bound or not self._carry_shapes:
                raise
        program = self._specialized(feeds, self._carry_shapes)
        self._bound = self._carry_shapes
        return program, self._bound

    def _specialized(self, feeds: Mapping[str, Any], bound: Sequence[str]) -> Executable:
        dims = self._dims({name: v for name, v in feeds.items() if name not in bound})
        values = {name: np.asarray(feeds[name]) for name in bound if name in feeds}
        shapes = {n: [np.shape(e) for e in v] for n, v in feeds.items() if isinstance(v, list)}
        rest = (
            *((name, *elements) for name, elements in shapes.items()),
            *((name, v.dtype.name, v.shape, v.tobytes()) for name, v in values.items()),
        )
        free = {name: n for name, n in dims.items() if name not in self._options.get("dims", {})}
        for (ranges, others), program in self._programs.items():
            is_static = all(isinstance(r, int) for _, r in ranges)
            if others == rest and (is_static or self._takes_ranges) and _within(free, ranges):
                return program
        constants = {**self._options.get("constants", {}), **values}
        model = with_elements(self._model, shapes)
        if free and self._takes_ranges and (rest, bound) not in self._static:
            ranges = {name: _around(extent) for name, extent in free.items()}
            try:
                return self._compiled(model, ranges, constants, rest)
            except Exception:  # guard: compilers fail in any way over ranges; extents alone follow
                self._static.add((rest, bound))
        return self._compiled(model, free, constants, rest)

    def _compiled(
        self,
        model: onnx.ModelProto,
        dims: Mapping[str, int | DimRange],
        constants: Mapping[str, Any],
        rest: tuple,
    ) -> Executable:
        all_dims = {**dims, **self._options.get("dims", {})}
        options: Options = {**self._options, "constants": constants, "dims": all_dims}
        artifact = compile(model, self._target, options, cache=self._cache)
        if len(self._programs) >= _KEPT:
            del self._programs[next(iter(self._programs))]
        program = load(artifact)
        self._programs[tuple(sorted(dims.items())), rest] = program
        return program

    def _dims(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Read symbolic extents, those with a name of their own, off the inputs."""
        dims: dict[str, int] = {}
        for name, value in feeds.items():
            if isinstance(value, (list, dict)) or value is None:
                continue
            for label, extent in zip(self._shapes.get(name, ()), np.shape(value), strict=False):
                if isinstance(label, str) and label.isidentifier():
                    dims[label] = extent
        return dims


def _around(extent: int) -> int | DimRange:
    """Return a range around an extent; memory is planned for its upper end."""
    if extent == 0:
        return 0
    return DimRange(1, max(_LEAST_HIGH, 1 << (2 * extent - 1).bit_length()))


def _within(dims: Mapping[str, int], ranges: Sequence[tuple[str, int | DimRange]]) -> bool:
    """Whether a program compiled for ranges takes extents."""
    if len(dims) != len(ranges):
        return False
    return all(
        r == dims.get(name) if isinstance(r, int) else r.low <= dims.get(name, -1) <= r.high
        for name, r in ranges
    )


def _array(name: str, value: Any, kind: onnx.TypeProto) -> Any:
    """Make an array of a list or number; anything else is one, or is refused later."""
    if not isinstance(value, (list, tuple, bool, int, float)):
        return value
    number = kind.tensor_type.elem_type
    try:
        return np.asarray(value, helper.tensor_dtype_to_np_dtype(number) if number else None)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"input {name!r} is not an array ({error})", "lists of one length"
        ) from error


def _gathered(name: str, found: Mapping[str, np.ndarray]) -> Any:
    """Return an output, a sequence as the list of its elements."""
    if name in found:
        return found[name]
    numbered = (f"{name}_{i}" for i in itertools.count())
    return [found[each] for each in itertools.takewhile(found.__contains__, numbered)]


class Backend(_Backend):
    """ONNX's interface to this compiler."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Take a model; the first run compiles it.

        Parameters
        ----------
        model : onnx.ModelProto, str or os.PathLike
            A model or the path of one.
        device
            ``CPU``, or ``CUDA`` for the first device.
        **kwargs
            Of :class:`PreparedModel`: ``ranges``, ``cache``, fields of
            :class:`tvm_fusion.FusionConfig`.
        """
        if not cls.supports_device(device):
            raise UserError(f"device {device!r}", "CPU, or CUDA where there is such a device")
        if isinstance(model, (str, os.PathLike)):
            model = load_file(model)
        return PreparedModel(model, _TARGETS[_kind(device)], **kwargs)

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model and run it once; parameters as for :meth:`prepare` and its result."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator.

        Parameters
        ----------
        node
            The operator.
        inputs : sequence or mapping of array
            Its inputs that are not left out.
        device
            See :meth:`prepare`.
        outputs_info : sequence of (dtype, shape), optional
            Of the outputs; ONNX infers them where omitted.
        **kwargs
            ``opset_version`` of the standard operators, and as for :meth:`prepare`.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = list(dict.fromkeys(name for name in node.input if name))
        values = [inputs[name] for name in names] if isinstance(inputs, Mapping) else list(inputs)
        arrays = [np.asarray(value) for value in values]
        infos: list[Any] = [*(outputs_info or ()), *([None] * len(node.output))]
        outputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(info[0])), info[1]
            )
            if info is not None
            else onnx.ValueInfoProto(name=name)
            for name, info in zip(node.output, infos, strict=False)
            if name
        ]
        graph = helper.make_graph(
            [node],
            node.op_type,
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in zip(names, arrays, strict=True)
            ],
            outputs,
        )
        opsets = [helper.make_opsetid("", opset)]
        if node.domain not in ("", "ai.onnx"):
            opsets.append(helper.make_opsetid(node.domain, 1))
        model = helper.make_model(graph, opset_imports=opsets)
        return cls.run_model(model, dict(zip(names, arrays, strict=True)), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tell whether models can run on a device here: ``CPU``, ``CUDA``, ``CUDA:0``."""
        kind, _, number = device.partition(":")
        if kind == "CUDA":
            return number in ("", "0") and bool(cuda_devices())
        return kind == "CPU" and number in ("", "0")


def _kind(device: str) -> str:
    return device.partition(":")[0]


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
