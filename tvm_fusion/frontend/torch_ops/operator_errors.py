"""Errors of a converted operator: named as torch documents it, its result compared with torch's."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from ...errors import UserError
from ..registry import Unsupported
from ..tensor_types import mismatch
from .call import name_of, real_name_of, refusal
from .complex_pairs import Pair

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
