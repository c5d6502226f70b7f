"""Symbolic extents of an exported program: the user's names, and derived ones such as ``4*h``.

A Relax function learns its variables from the extents of its parameters, and cannot solve
``4*h == extent`` for ``h``. Where no input carries ``h`` itself, the function is compiled over a
variable for the whole extent, and the signature says ``4*h``: calls are checked for it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ...errors import UserError
from ...signature import DimRange, Signature, TensorSpec
from ..dimensions.extents import to_tir
from ..dimensions.symbolic import UNLIMITED, DimTable


@dataclass(frozen=True)
class Derived:
    """An extent that is a number times a symbol, plus a number.

    Attributes
    ----------
    expr : sympy.Expr
        The extent: ``4*s39``.
    symbol : sympy.Symbol
        The symbol in it, which no input carries.
    variable
        What the variable for the whole extent is called: ``<input>_<axis>``.
    where
        The input that carries the extent, with the axis.
    """

    expr: Any
    symbol: Any
    variable: str
    where: str

    def of(self, value: int) -> int:
        """Return the extent for a value of the symbol."""
        return int(self.expr.subs(self.symbol, value))

    @property
    def inverse(self) -> Any:
        """The symbol as an expression over the variable."""
        variable = sympy.Symbol(self.variable, integer=True, positive=True)
        return sympy.solve(sympy.Eq(self.expr, variable), self.symbol)[0]


def without_ranges_of_expressions(program: torch.export.ExportedProgram) -> None:
    """Forget ranges of expressions, such as ``4*h``, which a program read from a file has.

    torch 2.13's ``load`` lists them among those of symbols, and then fails to decompose the program
    ("expected sympy.Symbol"). The symbols in them have ranges of their own.
    """
    for env in {id(env): env for env in _shape_envs(program)}.values():
        for key in [k for k in env.var_to_range if not isinstance(k, sympy.Symbol)]:
            del env.var_to_range[key]


def _shape_envs(program: torch.export.ExportedProgram) -> Iterator[Any]:
    for node in program.graph.nodes:
        env = getattr(getattr(node.meta.get("val"), "fake_mode", None), "shape_env", None)
        if env is not None:
            yield env


def input_extents(program: torch.export.ExportedProgram) -> dict[str, Sequence[Any]]:
    """Return the extents of a program's inputs: numbers, and sympy's expressions."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return {
        name: [d if isinstance(d, int) else d.node.expr for d in values[name].shape]
        for name in program.graph_signature.user_inputs
        if isinstance(values.get(name), torch.Tensor)
    }


def user_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the names given to ``torch.export.Dim``, by torch's symbols; a saved file has none."""
    env = next(_shape_envs(program), None)
    if env is None:
        return {}
    sources = getattr(env, "source_to_var", {})
    given = getattr(env, "source_name_to_debug_name", {})
    names: dict[str, str] = {}
    for source, symbol in sources.items():
        name = given.get(source, source)
        if name.isidentifier():
            symbol = env.replacements.get(symbol, symbol)
            names.setdefault(str(symbol), name)
    return names


def derived_extents(extents: Mapping[str, Sequence[Any]]) -> list[Derived]:
    """List extents over a symbol that no input carries; one for each symbol.

    Raises
    ------
    UserError
        For an extent from which its symbols cannot be told.
    """
    flat = [(name, axis, e) for name, es in extents.items() for axis, e in enumerate(es)]
    known = {e for _, _, e in flat if isinstance(e, sympy.Symbol)}
    found: dict[Any, Derived] = {}
    for name, axis, extent in flat:
        missing = set() if isinstance(extent, int) else extent.free_symbols - known - found.keys()
        if not missing:
            continue
        (symbol, *others) = sorted(missing, key=str)
        where = f"{name}[{axis}]"
        if others or extent.free_symbols - {symbol} or sympy.degree(extent, symbol) != 1:
            raise UserError(
                f"the extent {extent} of input {where}",
                "a number times one dimension, plus a number",
                "export with a Dim of its own for this axis",
            )
        found[symbol] = Derived(extent, symbol, f"{name}_{axis}", where)
    return list(found.values())


def as_table(
    extents: Mapping[str, Sequence[Any]], derived: Sequence[Derived], names: Mapping[str, str]
) -> DimTable:
    """Make the table of a program's dimensions."""
    inputs = [(n, [e if isinstance(e, int) else str(e) for e in es]) for n, es in extents.items()]
    symbols = {
        str(s) for es in extents.values() for e in es for s in getattr(e, "free_symbols", ())
    }
    return DimTable(inputs, symbols, names, {str(d.symbol): d.where for d in derived})


def chosen_extents(
    derived: Sequence[Derived], table: DimTable, chosen: Mapping[str, int | DimRange]
) -> dict[str, int | DimRange]:
    """Return what is chosen for the variables of derived extents."""
    by_label = {dim.label: chosen[dim.name] for dim in table.dims}
    whole: dict[str, int | DimRange] = {}
    for extent in derived:
        value = by_label[str(extent.symbol)]
        if isinstance(value, int):
            whole[extent.variable] = extent.of(value)
        else:
            high = min(UNLIMITED, extent.of(value.high))
            # An extent such as 4*h is a multiple of four steps; one such as 4*h + 1 of none.
            offset = extent.of(0)
            step = (extent.of(value.step) - offset) if value.step > 1 and not offset else 1
            whole[extent.variable] = DimRange(extent.of(value.low), high, step)
    return whole


def in_names(signature: Signature, derived: Sequence[Derived], table: DimTable) -> Signature:
    """Write a signature over the user's dimensions instead of the variables of whole extents."""
    names = {dim.label: dim.name for dim in table.dims}
    texts = {
        d.variable: re.sub(r"\w+", lambda m: names.get(m[0], m[0]), str(d.expr)).replace(" ", "")
        for d in derived
    }

    def extent(value: int | str) -> int | str:
        if isinstance(value, int) or value in texts:
            return value if isinstance(value, int) else texts[value]
        whole = re.sub(
            r"\b[A-Za-z_]\w*", lambda m: f"({texts[m[0]]})" if m[0] in texts else m[0], value
        )
        return whole if whole == value else _simplified(whole)

    def spec(given: TensorSpec) -> TensorSpec:
        return replace(given, shape=tuple(map(extent, given.shape)))

    if not texts:
        return signature
    inputs, outputs = (tuple(map(spec, specs)) for specs in (signature.inputs, signature.outputs))
    return replace(signature, inputs=inputs, outputs=outputs)


def _simplified(text: str) -> str:
    """Shorten an extent: ``((4*h)+2)//2`` is ``2*h+1``; as it is where it stays a division."""
    names = set(re.findall(r"\b[A-Za-z_]\w*", text))
    try:
        value = to_tir(text, {n: sympy.Symbol(n, integer=True, positive=True) for n in names})
    except ValueError:  # of other functions than arithmetic
        return text
    short = str(sympy.expand(value)).replace(" ", "")
    return text if "floor" in short or "/" in short else short
