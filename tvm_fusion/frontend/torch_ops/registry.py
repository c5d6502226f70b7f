"""Register converters of PyTorch operators by name and overload: ``add.Tensor``."""

from collections.abc import Callable

from torch import fx

from ..registry import Registry, Unsupported
from . import complex_pairs, control_flow
from .call import Convert

# torch's own namespaces; names of operators are the same in all of them, or mean the same.
_TORCH = ("", "aten", "prims", "higher_order")
#: Python's operators on extents and on torch's symbolic numbers, which have no schema; TVM's.
PYTHON = ("add", "sub", "mul", "floordiv", "mod", "ge", "le", "gt", "lt", "eq", "ne", "neg")
#: Those whose results are no integers, for which TVM has no converter.
REAL = (
    *("truediv", "pow", "sym_float", "float", "_sym_sqrt", "_sym_cos", "_sym_cosh", "_sym_sin"),
    *("_sym_sinh", "_sym_tan", "_sym_tanh", "_sym_asin", "_sym_acos", "_sym_atan", "_sym_log2"),
)
#: torch's functions of symbolic numbers, and Python's that TVM has no converter for.
SYMBOLIC = (
    *("sym_sum", "sym_max", "sym_min", "sym_ite", "sym_not", "sym_int", "not_", "and_", "or_"),
    *("xor", "abs", "pos", "lshift", "rshift", "floor", "ceil", "trunc", "round", "int", "max"),
    "min",
)


def with_overload(name: str) -> str:
    """Write a name as the registry has it: ``erfc`` is ``erfc.default``."""
    name = name.removeprefix("aten::")
    return name if "." in name else f"{name}.default"


CONVERTERS = Registry(with_overload)


def register(
    *names: str,
    refuses: Callable[[fx.Node], Unsupported | None] | None = None,
    replace: bool = False,
) -> Callable[[Convert], Convert]:
    """Return a decorator that registers a converter of PyTorch operators.

    Parameters
    ----------
    *names
        Names with overloads, with their namespace unless it is torch's own: ``"add.Tensor"``,
        ``"acme::foo"``; the overload ``default`` may be left out.
    refuses
        From a node to an :class:`Unsupported` that says what about it the converter cannot do, None
        where it can. Torch decomposes the operator in such a node; where it cannot, the node is
        refused before anything is converted.
    replace
        Whether a converter that is registered already is replaced.

    Returns
    -------
    callable
        The decorator. The converter takes a :class:`.call.Call` and returns a Relax expression, or
        a tuple of them; it raises :class:`Unsupported`.

    Raises
    ------
    UserError
        By the decorator, for an operator that has a converter.
    """
    return CONVERTERS.register(*names, replace=replace, refuses=refuses)


def key_of(node: fx.Node) -> str:
    """Return the name under which a node's operator is registered."""
    namespace = getattr(node.target, "namespace", "")
    name = str(node.target.__name__)
    return name if namespace in _TORCH else f"{namespace}::{name}"


def unsupported(node: fx.Node) -> Unsupported | None:
    """Say why a node cannot be converted; None where it can, by a converter of ours or TVM's."""
    if control_flow.is_control_flow(node):
        return control_flow.unsupported(node)
    key = key_of(node)
    if complex_pairs.touches_complex(node) and key != "getitem":
        return complex_pairs.refusal(key, node)
    if key in CONVERTERS:
        return CONVERTERS[key].refusal(node)
    return None if key in (*PYTHON, *REAL, *SYMBOLIC, "getitem") else Unsupported("")
