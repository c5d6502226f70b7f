"""Nodes and edges of the extended computational graph: operators and the tensors between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from tvm import ir, relax, tirx

from ..core.names.source import Sources, sources_of
from .closed_form import closed_form
from .mapping_types.classify import Classification, classify
from .mapping_types.table import MappingType, most_complex
from .record import OpRecord, record_of
from .work import assumed_flops, at, bytes_of


@dataclass(eq=False)
class Value:
    """One tensor: a parameter of the function, a constant, or a result of an operator.

    An opaque operator may read and give other things (shapes, objects, tensors of unknown shape):
    they order operators as tensors do, and count no bytes.
    """

    name: str  # for a reader
    # Its shape may be symbolic. Any other type between opaque operators.
    type: relax.TensorType
    producer: Operator | None = None  # none for parameters and constants
    constant: ir.GenericConst | None = None  # the constant itself
    # Known at compile time: a constant, or the parameter of a group that stands for one.
    is_constant: bool = False
    # Known before the inputs are: a constant, a weight, or computed from such alone. An operator
    # that spreads a parameter over its result is no One-to-Many operator for that.
    is_parameter: bool = False
    consumers: list[Operator] = field(default_factory=list)
    leaves: bool = False

    @cached_property
    def closed_form(self) -> tirx.IndexMap | None:
        """What gives the elements of a constant by their indices, if anything does.

        A group's function carries it where a parameter stands for the constant.
        """
        return None if self.constant is None else closed_form(self.constant)

    @cached_property
    def closed_form_text(self) -> str:
        """The same as text, equal for equal forms; empty where there is none."""
        return "" if self.closed_form is None else str(self.closed_form)

    @cached_property
    def shape(self) -> tuple[ir.Expr, ...]:
        """Extents, symbolic ones as expressions over the Relax function's variables."""
        return tuple(self.type.shape.values)

    @property
    def dtype(self) -> str:
        """Element type."""
        return str(self.type.dtype)

    @cached_property
    def bytes(self) -> int:
        """Size in memory; symbolic extents count as ``ASSUMED_DIM``, unknown shapes nothing."""
        if not isinstance(getattr(self.type, "shape", None), relax.ShapeExpr):
            return 0
        return at(bytes_of(self.shape, self.dtype))

    @property
    def operator(self) -> Operator:
        """The producer of a result."""
        if self.producer is None:
            raise ValueError(f"{self.name} is not the result of an operator")
        return self.producer

    def __repr__(self) -> str:
        return f"Value({self.name}: {self.type})"


@dataclass(eq=False)
class Operator:
    """A node: one binding of the dataflow block."""

    index: int  # position of its binding
    name: str  # variable that it defines; with a number where several variables share a name
    func: tirx.PrimFunc | None  # what it computes, unscheduled; None for an opaque node
    gvar: ir.GlobalVar | None  # the PrimFunc's name in the module
    # In the order of the PrimFunc's first parameters: tensors, and scalars as expressions.
    operands: tuple[Value | ir.Expr, ...]
    results: tuple[Value, ...]  # in the order of its remaining parameters
    binding: relax.Binding  # where it came from
    # What other folders have derived from it, for as long as it lives.
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _tensors: tuple[Any, tuple[Value, ...]] = field(default=(None, ()), init=False, repr=False)

    @property
    def tensors(self) -> tuple[Value, ...]:
        """Operands that are tensors."""
        operands, tensors = self._tensors
        if operands is not self.operands:  # planning replaces those by copies
            tensors = tuple(o for o in self.operands if isinstance(o, Value))
            self._tensors = self.operands, tensors
        return tensors

    @cached_property
    def sources(self) -> Sources:
        """What it is in the user's model."""
        return sources_of(self.binding.var)

    @property
    def is_opaque(self) -> bool:
        """Whether no template can take it."""
        return self.func is None

    @cached_property
    def record(self) -> OpRecord | None:
        """Relax name and attributes; None for custom TensorIR."""
        return record_of(self.func) if self.func is not None else None

    @cached_property
    def title(self) -> str:
        """Short name of what it does, for a reader."""
        if self.record is not None:
            return self.record.name.removeprefix("relax.").removeprefix("nn.")
        return self.gvar.name_hint if self.gvar is not None else "opaque"

    @cached_property
    def classification(self) -> Classification:
        """Classes per (operand, result)."""
        if self.func is None:
            return Classification({}, "it is not a PrimFunc over blocks")
        return classify(self.func)

    @cached_property
    def type(self) -> MappingType:
        """Most complex class over the operands that are no parameters, if there are such."""
        if self.classification.reason:
            return MappingType.OPAQUE
        pairs = self.classification.pairs
        active = [
            pair.type
            for (operand, _), pair in pairs.items()
            if not (isinstance(v := self.operands[operand], Value) and v.is_parameter)
            # A contraction or reduction stays one whatever it is applied to.
            or pair.type is MappingType.MANY_TO_MANY
        ]
        return most_complex(active) if active else MappingType.ONE_TO_ONE

    def operand_type(self, value: Value) -> MappingType:
        """Most complex class between one tensor operand and the results."""
        types = [
            t
            for i, operand in enumerate(self.operands)
            if operand is value and (t := self.classification.operand(i)) is not None
        ]
        return most_complex(types) if types else self.type

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations; symbolic extents count as ``ASSUMED_DIM``."""
        return _flops(self.func) if self.func is not None else 0

    @cached_property
    def result_bytes(self) -> int:
        """Size of its results: DNNFusion's intermediate-result size."""
        return sum(v.bytes for v in self.results)

    def __repr__(self) -> str:
        return f"Operator({self.index}: {self.name} = {self.title})"


@dataclass(eq=False)
class Edge:
    """A tensor from one operator to another."""

    producer: Operator
    value: Value
    consumer: Operator

    @property
    def type(self) -> MappingType:
        """The consumer's class for this operand."""
        return self.consumer.operand_type(self.value)


@lru_cache(maxsize=4096)
def _flops(func: tirx.PrimFunc) -> int:
    return assumed_flops(func)


def flatten(value: Value | tuple) -> list[Value]:
    """List the tensors of a nested tuple."""
    if isinstance(value, tuple):
        return [v for part in value for v in flatten(part)]
    return [value]
