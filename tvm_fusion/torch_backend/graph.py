"""One graph: its programs, by the extents that they were compiled for, and calls of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch.export.passes import move_to_device_pass

from ..compiler import compile
from ..deploy.runtime.executable import Executable
from ..deploy.runtime.function import Function, Unchecked
from ..deploy.runtime.load import load
from ..errors import UserError
from ..signature import DimRange
from .options import BackendOptions
from .program import (
    Argument,
    Computed,
    Extent,
    Given,
    Result,
    TensorProgram,
    hint,
    inverse,
    memory_order,
    symbol_places,
    tensor_program,
    unplaced,
    written_arguments,
)

_LEAST_HIGH = 8  # of a range's upper end: batches
_UNBOUNDED = 1 << 30

Run = Callable[[Sequence[Any], Mapping[Any, int]], list[Any]]


class Graph:
    """A functional graph; called with its arguments in a list.

    Parameters
    ----------
    values
        Its arguments as they were traced: fake tensors and symbolic numbers.
    names
        What the user calls arguments of dynamo's graph.
    given
        Arguments of dynamo's graph in the call that it was traced for.
    """

    _boxed_call = True  # AOTAutograd passes arguments in a list

    def __init__(
        self,
        traced: fx.GraphModule,
        values: Sequence[Any],
        names: Mapping[int, str],
        given: Sequence[Any],
        options: BackendOptions,
    ) -> None:
        self._traced, self._values, self._options = traced, list(values), options
        sources = _sources(traced)
        self._names = {i: names[source] for i, source in sources.items()}
        static = _static()
        self._numbers = unplaced(values)
        self._places = symbol_places(values)
        self._extents = tuple(self._places.values())
        self._target = options.target or _target(values)
        written = written_arguments(traced)
        static = [i for i in static if i in sources]
        kept = [i for i in static if i not in written] if options.freeze else []
        self._weights = {i: given[sources[i]] for i in kept}
        # Parameters and buffers that a call reads, or writes, where they lie.
        self._bound = [i for i in static if i not in kept and _is_dense(values[i])]
        self._static = [i for i in self._bound if i not in written]
        self._programs: list[tuple[tuple[Any, ...], tuple[DimRange, ...], Run]] = []

    def prepare(self) -> None:
        """Compile for the extents that were traced, so that mistakes are told at once.

        What depends on numbers that no shape tells waits for the first call.
        """
        if not self._numbers:
            self._compiled((), tuple(hint(symbol) for symbol in self._symbols()))

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run the graph."""
        if not self._numbers and not self._extents and self._programs:
            return self._programs[0][2](arguments, {})
        numbers = tuple(arguments[i] for i in self._numbers)
        extents = tuple(arguments[i].shape[axis] for i, axis in self._extents)
        program = self._known(numbers, extents)
        if program is None:
            # In a thread of its own: here, below autograd, nothing can be traced.
            with ThreadPoolExecutor(1) as pool:
                program = pool.submit(self._compiled_or_eager, numbers, extents).result()
        return program(arguments, dict(zip(self._places, extents, strict=True)))

    def _compiled_or_eager(self, numbers: tuple[Any, ...], extents: tuple[int, ...]) -> Run:
        try:
            return self._compiled(numbers, extents)
        except Exception as error:  # guard: a user who asked for it goes on in PyTorch
            if not self._options.fallback:
                raise
            warnings.warn(f"PyTorch runs this graph: {error}", stacklevel=2)
            exact = tuple(DimRange(extent, extent) for extent in extents)
            self._programs.append((numbers, exact, self._eager))
            return self._eager

    def _eager(self, arguments: Sequence[Any], _extents: Mapping[Any, int]) -> list[Any]:
        return list(self._traced(*arguments))

    def _known(self, numbers: tuple[Any, ...], extents: tuple[int, ...]) -> Run | None:
        for values, ranges, program in self._programs:
            if values == numbers and all(e in r for e, r in zip(extents, ranges, strict=True)):
                return program
        return None

    def _symbols(self) -> list[Any]:
        return [self._values[i].shape[axis] for i, axis in self._extents]

    def _range(self, symbol: torch.SymInt, extent: int) -> DimRange:
        """Choose a range: memory is planned for its upper end.

        Extents outside of it get another program.
        """
        bounds = symbol.node.shape_env.bound_sympy(symbol.node.expr)
        low, high = _number(bounds.lower, 1), _number(bounds.upper, _UNBOUNDED)
        if high >= _UNBOUNDED:
            high = max(_LEAST_HIGH, 1 << (2 * extent - 1).bit_length())
        return DimRange(min(max(1, low), extent), high)

    def _compiled(self, numbers: tuple[Any, ...], extents: tuple[int, ...]) -> Run:
        """Compile for a range around extents, or where that fails for these alone."""
        ranges = tuple(map(self._range, self._symbols(), extents))
        exact = tuple(DimRange(extent, extent) for extent in extents)
        try:
            program = self._of_ranges(numbers, ranges)
        except Exception:  # guard: compilers fail in any way over ranges; extents alone follow
            if not ranges:
                raise
            ranges, program = exact, self._of_ranges(numbers, exact)
        self._programs.append((numbers, ranges, program))
        return program

    def _of_ranges(self, numbers: tuple[Any, ...], ranges: tuple[DimRange, ...]) -> Program:
        """Compile for ranges; again where that shows that symbols are the same extent."""
        while True:
            dims = self._dims(ranges)
            try:
                return self._once(numbers, ranges)
            except UserError:
                if self._dims(ranges).keys() == dims.keys():
                    raise

    def _dims(self, ranges: tuple[DimRange, ...]) -> dict[str, DimRange]:
        """Name the ranges by symbols, as torch has them now."""
        expressions = [symbol.node.expr for symbol in self._symbols()]
        pairs = zip(expressions, ranges, strict=True)
        return {str(one): extents for one, extents in pairs if not one.is_Integer}

    def _once(self, numbers: tuple[Any, ...], ranges: tuple[DimRange, ...]) -> Program:
        of_numbers = dict(zip(self._numbers, numbers, strict=True))
        parts = self._traced, self._values, self._names, self._weights, of_numbers
        with torch.no_grad():
            made = tensor_program(*parts)
            try:
                return self._program(made, ranges)
            except UserError:
                if not made.in_place:
                    raise
            return self._program(tensor_program(*parts, may_write=False), ranges)

    def _program(self, made: TensorProgram, ranges: tuple[DimRange, ...]) -> Program:
        if made.program is None:
            return Program(made, None)
        static = [a.name for a in made.arguments if a.index in self._static]
        config = replace(
            self._options.config,
            dims=self._dims(ranges),
            static_inputs=static,
            in_place=made.in_place,
        )
        program = move_to_device_pass(made.program, "cpu")
        artifact = compile(program, self._target, config, cache=self._options.cache)
        is_never_empty = all(extents.low > 0 for extents in ranges)
        return Program(made, load(artifact), self._bound, is_never_empty)


class Program:
    """A loaded program of a graph.

    Parameters
    ----------
    made
        How arguments and results come about.
    executable
        None where the graph computes no tensor.
    bound
        Arguments that lie at the same addresses in every call, as a rule.
    is_never_empty
        Whether symbolic extents are 1 at least.
    """

    def __init__(
        self,
        made: TensorProgram,
        executable: Executable | None,
        bound: Collection[int] = (),
        is_never_empty: bool = True,
    ) -> None:
        self._made, self._executable = made, executable
        self._fixed = [a for a in made.arguments if a.index in bound]
        self._other = [a for a in made.arguments if a.index not in bound]
        self._written = [(i, a) for i, a in enumerate(self._other) if a.name in made.in_place]
        self._is_never_empty = is_never_empty
        computed = [r for r in made.results if isinstance(r, Computed)]
        is_all = computed == list(made.results) == [Computed(r.position) for r in computed]
        self._order = [result.position for result in computed] if is_all else None
        self._bound: tuple[list[int], Function, Unchecked | None] | None = None

    def __call__(self, arguments: Sequence[Any], extents: Mapping[Any, int]) -> list[Any]:
        """Run it; returns the graph's results."""
        outputs: Sequence[Any] = ()
        if self._executable is not None:
            inputs = [_in_memory_order(arguments[a.index], a) for a in self._other]
            function, unchecked = self._function(arguments, inputs)
            if unchecked is not None:
                outputs = unchecked(inputs)
            else:
                named = {a.name: tensor for a, tensor in zip(self._other, inputs, strict=True)}
                outputs = list(function.run(named).values())
            for place, argument in self._written:
                _write_back(arguments[argument.index], inputs[place], argument)
            for index, position in self._made.copies.items():
                written, output = arguments[index], outputs[position]
                written.copy_(torch.view_as_complex(output) if written.is_complex() else output)
        if self._order is not None:
            return [outputs[position] for position in self._order]
        return [self._result(one, arguments, outputs, extents) for one in self._made.results]

    def _function(
        self, arguments: Sequence[Any], inputs: Sequence[torch.Tensor]
    ) -> tuple[Function, Unchecked | None]:
        """Bind parameters and buffers, again where the user has put others in their places."""
        assert self._executable is not None
        addresses = [arguments[a.index].data_ptr() for a in self._fixed]
        bound = self._bound  # other threads may replace it
        if bound is None or bound[0] != addresses:
            fixed = {a.name: _in_memory_order(arguments[a.index], a) for a in self._fixed}
            function = self._executable.bind(fixed)
            # dynamo guards types, shapes and strides: what fits once does so in every call.
            unchecked = function.unchecked(inputs) if self._is_never_empty else None
            self._bound = bound = addresses, function, unchecked
        return bound[1], bound[2]

    def _result(
        self,
        result: Result,
        arguments: Sequence[Any],
        outputs: Sequence[Any],
        extents: Mapping[Any, int],
    ) -> Any:
        if isinstance(result, Computed):
            tensor = outputs[result.position]
            tensor = torch.view_as_complex(tensor) if result.is_complex else tensor
            return tensor if result.axes is None else tensor.permute(result.axes)
        if isinstance(result, Given):
            return arguments[result.index]
        if isinstance(result, Extent):
            known = extents.get(result.expression)
            return int(result.expression.subs(extents)) if known is None else known
        return result.value


def _in_memory_order(tensor: torch.Tensor, argument: Argument) -> torch.Tensor:
    """View a tensor with its axes as they lie in memory; copy it where that is not dense.

    A complex one becomes a real one with a last axis of two.
    """
    if argument.order is not None:
        tensor = tensor.permute(argument.order)
    tensor = tensor.contiguous()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor fills its memory, in any order of its axes: then none is a copy."""
    return value.is_contiguous() or memory_order(value) is not None


def _write_back(tensor: torch.Tensor, written: torch.Tensor, argument: Argument) -> None:
    """Copy what was written into a copy of an argument."""
    if tensor.data_ptr() != written.data_ptr():
        order = argument.order
        written = torch.view_as_complex(written) if tensor.is_complex() else written
        tensor.copy_(written if order is None else written.permute(inverse(order)))


def _number(bound: Any, otherwise: int) -> int:
    return int(bound) if bound.is_Integer else otherwise


def _static() -> Sequence[int]:
    """List arguments of the graph that is traced which are parameters and buffers."""
    context = TracingContext.try_get()
    found = None if context is None else context.fw_metadata
    return () if found is None else found.static_input_indices


def _sources(traced: fx.GraphModule) -> dict[int, int]:
    """Tell which arguments of AOTAutograd's graph are which of dynamo's."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    return {
        i: node.meta["desc"].idx
        for i, node in enumerate(placeholders)
        if hasattr(node.meta.get("desc"), "idx")
    }


def _target(values: Sequence[Any]) -> str:
    """Name the target of a graph's tensors: a GPU's, if one is there.

    Raises
    ------
    UserError
        For devices that artifacts do not run on.
    """
    devices = {value.device for value in values if isinstance(value, torch.Tensor)}
    for device in sorted(devices, key=str):
        if device.type not in ("cpu", "cuda") or (device.index or 0) != 0:
            raise UserError(f"tensors on {device}", "tensors on the CPU, or on cuda:0")
    return "cuda" if any(device.type == "cuda" for device in devices) else "cpu"
