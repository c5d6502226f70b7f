"""Symbolic dimensions: their names in the model, and what the user bound them to.

A dimension is known by a name that is an identifier, since it becomes a TIR variable and stands in
the expressions of a signature (``batch*4``). A model may call it anything; users may say either.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from ...config import whole_steps
from ...errors import UserError
from ...signature import DimRange

# The upper end of a range that has none.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class SymbolicDim:
    """One symbolic dimension of a model."""

    name: str  # an identifier, unique in the model
    label: str  # what the model calls it; equal to ``name`` where that is an identifier
    where: str  # the first input that carries it, with the axis: ``input_ids[0]``


def identifier(text: str) -> str:
    """Turn any text into an identifier: ``batch size`` becomes ``batch_size``."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name and not name[0].isdigit() else f"d{name}"


class DimTable:
    """The symbolic dimensions of a model's inputs.

    Parameters
    ----------
    inputs
        Names and extents: a number, the model's name for a symbolic extent, or None where the model
        leaves a dynamic extent without a name.
    made_up : container of str, optional
        Names that a tool invented, such as torch's ``s17``; such dimensions are called like those
        without a name, and users may still say the invented one.
    names
        What the user called dimensions of invented names.
    roots
        Dimensions that no input carries plainly, but an expression over them, and where that is.

    Notes
    -----
    A name such as ``2*seq`` is an expression where all its variables are dimensions that some input
    carries plainly, and otherwise a name like any other. A dynamic extent without a name is called
    ``<input>_<axis>``; what it is a multiple of, ``<input>_<axis>_multiple``.
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, Sequence[int | str | None]]],
        made_up: Collection[str] = (),
        names: Mapping[str, str] = MappingProxyType({}),
        roots: Mapping[str, str] = MappingProxyType({}),
    ):
        self._by_label: dict[str, SymbolicDim] = {}
        plain = {d for _, shape in inputs for d in shape if isinstance(d, str) and d.isidentifier()}
        plain |= roots.keys()
        self._roots = frozenset(roots)
        self._has_names = names.keys() >= set(made_up)
        self.shapes: dict[str, tuple[int | str, ...]] = {}
        taken = set(plain)
        for label, where in roots.items():
            place = f"{identifier(where).strip('_')}_multiple"
            wish = names.get(label, place if label in made_up else label)
            name = _fresh(identifier(wish), taken - {label})
            taken.add(name)
            self._by_label[label] = SymbolicDim(name, label, where)
        for input_name, shape in inputs:
            extents: list[int | str] = []
            for axis, extent in enumerate(shape):
                if isinstance(extent, int):
                    extents.append(extent)
                    continue
                label = f"{input_name}_{axis}" if extent is None else extent
                expression = None if extent is None else _expression_over(extent, plain)
                if expression is not None:
                    extents.append(expression)
                    continue
                if label not in self._by_label:
                    place = f"{input_name}_{axis}"
                    wish = names.get(label, place if label in made_up else label)
                    name = wish if wish in plain else _fresh(identifier(wish), taken)
                    taken.add(name)
                    self._by_label[label] = SymbolicDim(name, label, f"{input_name}[{axis}]")
                extents.append(self._by_label[label].name)
            self.shapes[input_name] = tuple(extents)

    def _advice(self) -> str | None:
        """Say what to do about a choice that names no dimension."""
        if not self._by_label:
            return "leave the option out"
        if self._has_names:
            return None
        return (
            "the program has no names of them (a .pt2 file keeps none), so that they are called "
            "after an input and its axis"
        )

    @property
    def dims(self) -> tuple[SymbolicDim, ...]:
        """The dimensions in the order of the inputs."""
        return tuple(self._by_label.values())

    def resolve(
        self,
        wanted: Mapping[str, int | DimRange],
        known: Mapping[str, DimRange] | None = None,
    ) -> tuple[dict[str, int | DimRange], list[SymbolicDim]]:
        """Match the user's choices with the model's dimensions.

        Parameters
        ----------
        wanted
            The user's choices, by identifier, the model's name, or ``<input>_<axis>``.
        known
            By the model's name, ranges that the model itself states: choices must lie inside, and
            where there is none, a limited range is taken as it is.

        Returns
        -------
        chosen : dict of str to (int or DimRange)
            By identifier; a range of one extent is that extent.
        unbound : list of SymbolicDim
            The dimensions without a given range.

        Raises
        ------
        UserError
            When a choice names no dimension of the model, its extents are not positive or outside
            of the known range, or its range is empty.
        """
        known = known or {}
        by_name = {
            identifier(dim.where).strip("_"): dim
            for dim in self.dims
            if dim.label not in self._roots
        }
        by_name |= {dim.name: dim for dim in self.dims} | self._by_label
        chosen: dict[str, int | DimRange] = {}
        unknown = _unknown.get()
        for key, value in wanted.items():
            if key not in by_name and unknown is not None:
                continue
            if unknown is not None:
                unknown.discard(key)
            if key not in by_name:
                names = ", ".join(_quoted(dim) for dim in self.dims)
                raise UserError(
                    f"--dim {key} names no dimension of the model",
                    f"one of {names}" if names else "none: all extents of the model are fixed",
                    self._advice(),
                )
            dim = by_name[key]
            chosen[dim.name] = _checked(key, value, known.get(dim.label))
        unbound = []
        for dim in self.dims:
            if dim.name in chosen:
                continue
            if dim.label in known and known[dim.label].high < UNLIMITED:
                # Ranges that were not asked for start at 1: kernels that may run on empty tensors
                # are for those who want them, and tools write 0 where nobody chose a lower end.
                low, high = known[dim.label].low, known[dim.label].high
                whole = DimRange(min(max(1, low), high), high)
                chosen[dim.name] = _checked(dim.name, whole, None)
            else:
                unbound.append(dim)
        return chosen, unbound


_unknown: ContextVar[set[str] | None] = ContextVar("unknown", default=None)


@contextmanager
def of_several_models(wanted: Collection[str]) -> Iterator[None]:
    """Let each choice be for a dimension of some of the models that are resolved inside.

    Raises
    ------
    UserError
        At the end, for a choice that none of them has.
    """
    token = _unknown.set(set(wanted))
    try:
        yield
        unknown = _unknown.get()
    finally:
        _unknown.reset(token)
    if unknown:
        name = min(unknown)
        raise UserError(f"--dim {name} names no dimension of any model", "one that a model has")


def unbound_sentence(unbound: Iterable[SymbolicDim]) -> str:
    """Name the given dimensions and one place where each occurs."""
    return "unbound dimensions " + ", ".join(f"{_quoted(d)} of input {d.where}" for d in unbound)


def unbound_advice(unbound: Iterable[SymbolicDim]) -> str:
    """Say which options would settle the given dimensions."""
    options = " and ".join(f"--dim {dim.name}=VALUE or {dim.name}=LOW..HIGH" for dim in unbound)
    return f"give {options}, in Python dims={{...}}"


def _quoted(dim: SymbolicDim) -> str:
    return dim.name if dim.name == dim.label else f"{dim.name} ('{dim.label}' in the model)"


def _checked(key: str, value: int | DimRange, known: DimRange | None) -> int | DimRange:
    low, high = (value, value) if isinstance(value, int) else (value.low, value.high)
    option = f"--dim {key}={value if isinstance(value, int) else value.text}"
    if low < 0 or high < low:
        is_fixed = isinstance(value, int)
        raise UserError(option, "an extent of at least 0" if is_fixed else "0 <= LOW <= HIGH")
    if known is not None and (low < known.low or high > known.high):
        limits = f"{known.low}..{'' if known.high >= UNLIMITED else known.high}"
        raise UserError(option, f"extents within {limits}, which is what the model was made for")
    if isinstance(value, int):
        return value
    value = whole_steps(option, value)
    return value.low if value.low == value.high else value


def _fresh(name: str, taken: set[str]) -> str:
    candidates = [name, *(f"{name}_{i}" for i in range(1, len(taken) + 2))]
    return next(c for c in candidates if c not in taken)


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div)


def _expression_over(label: str, names: set[str]) -> str | None:
    """Return ``label`` in Python's syntax if it is arithmetic over ``names``, else None."""
    try:
        tree = ast.parse(label.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    nodes = list(ast.walk(tree))
    allowed = (ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)
    used = {n.id for n in nodes if isinstance(n, ast.Name)}
    if isinstance(tree, ast.Name) or not used or not used <= names:
        return None
    if not all(isinstance(n, allowed) for n in nodes):
        return None
    if any(isinstance(n, ast.Constant) and not isinstance(n.value, int) for n in nodes):
        return None
    # Extents are integers, so exporters that write "/" mean the division that rounds down.
    return re.sub(r"(?<!/)/(?!/)", "//", ast.unparse(tree)).replace(" ", "")
