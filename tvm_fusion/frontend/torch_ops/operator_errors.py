"""Why operators are refused, and what to do instead."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ...errors import UserError
from ..registry import Unsupported
from ..tensor_types import mismatch
from .call import name_of, real_name_of, refusal
from .complex_pairs import Pair

_ADVICE = (
    (
        r"linalg|cholesky|lu_|^lu|qr|svd|eig|ormqr|geqrf|lstsq|triangular_solve|inverse|slogdet",
        "compute factorizations outside of the model and pass their results as inputs",
    ),
    (
        r"complex|view_as_real|view_as_complex|polar|conj|angle|real|imag",
        "keep real and imaginary parts as two tensors",
    ),
    (
        r"special_|igamma|polygamma|digamma|lgamma|erfinv|i0|bessel|zeta",
        "approximate special functions by exp, log and erf",
    ),
    (r"sparse|to_dense|_nested|quantiz|dequant", "keep tensors dense and of plain dtypes"),
    (
        r"while_loop|^scan$|associative_scan|map_impl|^cond$",
        "keep real and imaginary parts as two tensors in branches and loops",
    ),
    (r"backward", "export the model for inference, under torch.no_grad()"),
)
# For Python's own operators, which have no namespace.
_OF_NUMBERS = "give the dimensions that are computed with a fixed extent"
_OTHERWISE = (
    "register a converter of {names} (tvm_fusion.frontend.torch_ops.register), or compile "
    "program.run_decompositions({{torch.ops.{first}: f}}), f being the same in other operators"
)


def advice(names: Iterable[str]) -> str:
    """Say what to do instead of operators, such as ``aten._fft_r2c``.

    Returns
    -------
    str
        Imperatives, the ways joined by "and".
    """
    ways, rest = [], []
    for name in names:
        own = name.partition(".")[2]
        found = [way for pattern, way in _ADVICE if re.search(pattern, own)]
        found = found if own else [_OF_NUMBERS]
        ways += found[:1]
        rest += [] if found else [name]
    if rest:
        listed = ", ".join(rest)
        first = rest[0] if rest[0].count(".") > 1 else f"{rest[0]}.default"
        ways.append(_OTHERWISE.format(names=listed, first=first))
    return " and ".join(dict.fromkeys(ways))


_OP = re.compile(r'ir\.Op\(span=None.*?name="(?:relax\.)?([\w.]+)".*?support_level=\d+\)')


def operator_name(node: fx.Node) -> str:
    """Name a node's operator as torch documents it: ``aten.add.Tensor``."""
    namespace = getattr(node.target, "namespace", "")
    name = node.target.__name__.removesuffix(".default")
    return f"{namespace}.{name}" if namespace else name


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error says, operators by their names."""
    lines = str(error).strip().splitlines()
    return _OP.sub(r"\1", lines[0]).strip().rstrip(".") if lines else type(error).__name__


def ignoring(name: str, ignored: list[str], given: dict[str, Any]) -> UserError:
    """Say that arguments that were given are not supported."""
    listed = ", ".join(f"{argument}={given[argument]}" for argument in ignored)
    return refusal(name, Unsupported(f"with {listed}", "leave the argument at its default"))


def compare(name: str, result: Any, expected: torch.Tensor) -> None:
    """Compare dtype and static extents of a result with those that torch says it has.

    Raises
    ------
    UserError
        Where they differ.
    """
    if isinstance(result, Pair):
        dtype = real_name_of(expected.dtype)
        parts = [result.real, result.imag]
    else:
        parts = [result]
        try:
            dtype = name_of(expected.dtype)
        except Unsupported as error:
            raise refusal(name, error) from error
    shape = [extent if isinstance(extent, int) else None for extent in expected.shape]
    for part in parts:
        text = mismatch(part, dtype, shape)
        if text is not None:
            raise UserError(f"{name} is converted to {text}")
