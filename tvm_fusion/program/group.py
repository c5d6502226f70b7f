"""A group: operators that share kernels, with the views that templates work from."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ..core.once import once
from ..ecg.graph import Operator, Value
from ..ecg.mapping_types.table import MappingType
from .stage import Unstructured
from .stages.compose import compose

if TYPE_CHECKING:
    from .program import Program


class Group:
    """Operators of one graph, in order, with what goes in and what comes out.

    Parameters
    ----------
    hidden
        Results that other operators are not to read from this group: they compute them themselves.

    Attributes
    ----------
    members
        In topological order.
    inputs : tuple of Value
        What members read from outside, constants included, without duplicates.
    outputs : tuple of Value
        What is used outside, in the members' order.
    scalars
        Symbolic variables that no input has as a bare extent; kernels take them as parameters.
    """

    def __init__(self, members: Iterable[Operator], hidden: Container[Value] = ()) -> None:
        self.members = tuple(sorted(members, key=lambda op: op.index))
        inside = set(self.members)
        self.inputs = tuple(
            dict.fromkeys(v for op in self.members for v in op.tensors if v.producer not in inside)
        )
        self.outputs = tuple(
            v
            for op in self.members
            for v in op.results
            if v not in hidden and (v.leaves or any(c not in inside for c in v.consumers))
        )

    @cached_property
    def scalars(self) -> tuple[tirx.Var, ...]:
        """Symbolic variables that members use and no input has as a bare extent."""
        bare = {d for v in self.inputs for d in v.shape if isinstance(d, tirx.Var)}
        used: dict[tirx.Var, None] = {}
        for op in self.members:
            scalars = [o for o in op.operands if not isinstance(o, Value)]
            for expr in [d for v in (*op.tensors, *op.results) for d in v.shape] + scalars:
                used.update(dict.fromkeys(tirx.analysis.undefined_vars(expr)))
        return tuple(v for v in used if v not in bare)

    @cached_property
    def key(self) -> Hashable:
        """Structure of the group: equal keys mean equal kernels.

        PrimFuncs by identity (a module holds equal ones once), tensors and symbolic variables by
        their position; of constants, which kernels may want packed, that they are such, and their
        closed form, which kernels may rely on.
        """
        number: dict[Value, int] = {}
        symbols: dict[tirx.Var, int] = {}

        def extent(expr: ir.Expr) -> Hashable:
            if isinstance(expr, tirx.IntImm):
                return int(expr)
            mentioned = tirx.analysis.undefined_vars(expr)
            return str(expr), tuple(symbols.setdefault(v, len(symbols)) for v in mentioned)

        shapes = tuple(
            (v.dtype, v.is_constant, v.closed_form_text, tuple(map(extent, v.shape)))
            for v in self.inputs
        )
        wiring = []
        for op in self.members:
            operands = tuple(
                number.setdefault(o, len(number)) if isinstance(o, Value) else (extent(o),)
                for o in op.operands
            )
            results = tuple(number.setdefault(v, len(number)) for v in op.results)
            wiring.append((op.func, operands, results))
        return tuple(wiring), shapes, tuple(number[v] for v in self.outputs)

    @cached_property
    def program(self) -> Program:
        """The normal form: stages over aligned axes, maps inlined (the ``element`` view).

        Raises
        ------
        Unstructured
            Where an operator cannot be expressed as stages.
        """
        if not self._is_static:
            return compose(self.members, self.inputs, self.outputs)
        found = once(("program", self.key), self._composed)
        if isinstance(found, str):
            raise Unstructured(found)
        return found

    def _composed(self) -> Program | str:
        """Compose the normal form, or say why there is none."""
        try:
            return compose(self.members, self.inputs, self.outputs)
        except Unstructured as reason:
            return str(reason)

    @property
    def _is_static(self) -> bool:
        """Whether no symbolic variable, of which equal groups have their own, occurs in it."""
        operands = [o for op in self.members for o in (*op.operands, *op.results)]
        extents = [e for o in operands for e in (o.shape if isinstance(o, Value) else (o,))]
        return all(isinstance(e, tirx.IntImm | tirx.FloatImm) for e in extents)

    @property
    def title(self) -> str:
        """Members' titles, for a reader."""
        return " + ".join(op.title for op in self.members)

    @property
    def bytes(self) -> int:
        """What must be read and written, each tensor once."""
        return sum(v.bytes for v in (*self.inputs, *self.outputs))

    @property
    def hidden_bytes(self) -> int:
        """Results that no longer reach memory."""
        leaving = set(self.outputs)
        return sum(v.bytes for op in self.members for v in op.results if v not in leaving)

    def has(self, type_: MappingType) -> bool:
        """Whether a member is of a class."""
        return any(op.type is type_ for op in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"Group({self.title})"
