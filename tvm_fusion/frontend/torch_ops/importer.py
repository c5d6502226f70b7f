"""Extend TVM's importer of exported programs: every argument, dtype and shape checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
import tvm
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch import exported_program_translator as translator

from ...errors import UserError
from ..registry import Unsupported
from ..tensor_types import mismatch
from .call import FLOAT8, Call, name_of, refusal
from .registry import CONVERTERS, PYTHON, key_of

_OP = re.compile(r'ir\.Op\(span=None.*?name="(?:relax\.)?([\w.]+)".*?support_level=\d+\)')


class Importer(translator.ExportedProgramImporter):
    """Converts with the registered converters; extents' arithmetic by TVM's.

    Parameters
    ----------
    derived : sequence of Derived, optional
        Extents of inputs for which there is a variable instead of one for a symbol in them.
    """

    def __init__(self, derived: Sequence[Any] = ()):
        super().__init__()
        self._whole = {d.expr: d.variable for d in derived}
        self._variables: dict[str, tirx.Var] = {}
        self._inverse = {d.symbol: d.inverse for d in derived}

    @staticmethod
    def _convert_data_type(input_type: Any, env: Any = None) -> str:
        """Name a dtype; TVM 0.27 does not know float8."""
        given = env[input_type] if env is not None and input_type in env else input_type
        if given in FLOAT8:
            return FLOAT8[given]
        return translator.ExportedProgramImporter._convert_data_type(input_type, env)

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Build the map from the names of operators to converters, for branches, too."""
        theirs = super().create_convert_map()
        converters = {name: theirs[name] for name in PYTHON}
        # TVM looks operators up by name alone, whatever their namespace.
        converters |= {key.rpartition("::")[2]: self._ours for key in CONVERTERS}
        return converters | {"getitem": self._item_of_tuple}

    def extent(self, extent: torch.SymInt) -> Any:
        """Return a symbolic extent of torch's as an expression over this module's variables."""
        return _expression(extent.node.expr.subs(self._inverse), self._symbols())

    def _process_derived_symbol(self, symbol: Any, variables: dict[str, Any]) -> tuple[str, Any]:
        """Name an extent of an input, or write it over variables of others."""
        if symbol in self._whole:
            return self._whole[symbol], None
        if isinstance(symbol, sympy.Symbol):
            return str(symbol), None
        for one in symbol.free_symbols - self._inverse.keys():
            variables.setdefault(str(one), tirx.Var(str(one), "int64"))
        for variable in self._whole.values():
            variables.setdefault(variable, tirx.Var(variable, "int64"))
        return str(symbol), _expression(symbol.subs(self._inverse), variables)

    def _ours(self, node: fx.Node) -> Any:
        name = operator_name(node)
        try:
            call = Call(node, self)
            result = CONVERTERS[key_of(node)].convert(call)
        except Unsupported as error:
            raise refusal(name, error) from error
        except UserError:
            raise
        except Exception as error:  # guard: told as the refusal's reason
            raise UserError(f"{name} cannot be converted ({reason_of(error)})") from error
        ignored = call.ignored()
        if ignored:
            raise _ignoring(name, ignored, call.given)
        return self._checked(node, result)

    def _item_of_tuple(self, node: fx.Node) -> Any:
        value, number = self.env[node.args[0]], node.args[1]
        if isinstance(value, list | tuple):
            result = value[number]
        elif isinstance(getattr(value, "ty", None), relax.TupleType):
            result = self.block_builder.emit(relax.TupleGetItem(value, number))
        elif number == 0:
            result = value
        else:
            result = None
        if result is None:
            name = operator_name(node.args[0])
            error = Unsupported(f"with its result {number} used", "use its first result only")
            raise refusal(name, error)
        return self._checked(node, result)

    def _checked(self, node: fx.Node, result: Any) -> Any:
        """Compare types and extents of a result with what torch says of them."""
        expected = node.meta.get("val")
        if isinstance(expected, torch.Tensor):
            result = self._variable(result)
            self._compare(operator_name(node), result, expected)
        elif isinstance(expected, list | tuple) and isinstance(result, list | tuple):
            result = tuple(x if x is None else self._variable(x) for x in result)
            for mine, theirs in zip(result, expected, strict=False):
                if mine is not None and isinstance(theirs, torch.Tensor):
                    self._compare(operator_name(node), mine, theirs)
        return result

    def _variable(self, result: Any) -> Any:
        if isinstance(result, relax.Call):
            return self.block_builder.emit(result)
        return result

    def _compare(self, name: str, result: Any, expected: torch.Tensor) -> None:
        try:
            dtype = name_of(expected.dtype)
        except Unsupported as error:
            raise refusal(name, error) from error
        shape = [extent if isinstance(extent, int) else None for extent in expected.shape]
        text = mismatch(result, dtype, shape)
        if text is not None:
            raise UserError(f"{name} is converted to {text}")

    def _symbols(self) -> dict[str, tirx.Var]:
        """Find the variables of the parameters' extents, once: every other is refused."""
        if not self._variables:
            for value in self.env.values():
                ty = getattr(value, "ty", None)
                if isinstance(ty, relax.TensorType) and ty.shape is not None:
                    for extent in ty.shape:
                        for var in tirx.analysis.undefined_vars(extent):
                            self._variables.setdefault(var.name, var)
        return self._variables


def operator_name(node: fx.Node) -> str:
    """Name a node's operator as torch documents it: ``aten.add.Tensor``."""
    namespace = getattr(node.target, "namespace", "")
    name = node.target.__name__.removesuffix(".default")
    return f"{namespace}.{name}" if namespace else name


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error says, operators by their names."""
    lines = str(error).strip().splitlines()
    return _OP.sub(r"\1", lines[0]).strip().rstrip(".") if lines else type(error).__name__


def _ignoring(name: str, ignored: list[str], given: dict[str, Any]) -> UserError:
    listed = ", ".join(f"{argument}={given[argument]}" for argument in ignored)
    return refusal(name, Unsupported(f"with {listed}", "leave the argument at its default"))


def _expression(expr: Any, symbols: dict[str, tirx.Var]) -> Any:
    whole, divisor = sympy.fraction(sympy.together(expr))
    if divisor != 1:
        return tirx.floordiv(_expression(whole, symbols), int(divisor))
    if isinstance(expr, sympy.Integer):
        return tirx.IntImm("int64", int(expr))
    if isinstance(expr, sympy.Symbol):
        if str(expr) not in symbols:
            raise Unsupported("with an extent that depends on values")
        return symbols[str(expr)]
    parts = [_expression(arg, symbols) for arg in expr.args]
    kind = type(expr).__name__
    if kind in ("Add", "Mul"):
        result = parts[0]
        for part in parts[1:]:
            result = result + part if kind == "Add" else result * part
        return tvm.sym.Analyzer().simplify(result)
    if kind in ("FloorDiv", "CleanDiv"):
        return tirx.floordiv(*parts)
    if kind in ("Mod", "PythonMod"):
        return tirx.floormod(*parts)
    if kind in ("Max", "Min"):
        result = parts[0]
        for part in parts[1:]:
            result = tirx.max(result, part) if kind == "Max" else tirx.min(result, part)
        return result
    raise Unsupported(f"with the extent {expr}", "give the dimension a fixed extent")
