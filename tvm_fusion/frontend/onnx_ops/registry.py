"""Register converters of ONNX operators by domain and name: ``com.acme::Foo``."""

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import defs, helper

from ..registry import Registry, Unsupported
from .node import Node

Convert = Callable[[Node], Any]
STANDARD = ("", "ai.onnx")


def _key(name: str) -> str:
    return name.removeprefix("ai.onnx::")


CONVERTERS = Registry(_key)


def register(
    *names: str,
    since: int | None = None,
    refuses: Callable[[onnx.NodeProto], Unsupported | None] | None = None,
    takes_extents: bool = False,
    replace: bool = False,
) -> Callable[[Convert], Convert]:
    """Return a decorator that registers a converter of ONNX operators; see ``README.md`` here.

    Parameters
    ----------
    *names
        Operators, with their domain unless it is ONNX's own: ``"Elu"``, ``"com.acme::Foo"``.
    since
        First version of the operator's domain in which the converter knows it; by default the
        first in which ONNX defines it, and 1 in other domains.
    refuses
        From a ``NodeProto`` to an :class:`Unsupported` that says what about it the converter cannot
        do, None where it can. Preflight lists such nodes, all at once, before work starts; one that
        ONNX defines by a function is replaced by that. See :func:`other_than`. What depends on
        shapes or constant inputs the converter raises itself.
    takes_extents
        Whether the converter takes shapes (``relax.ShapeExpr``) and extents (TIR expressions) as
        inputs; otherwise they are int64 tensors, as ONNX has them.
    replace
        Whether a converter that is registered already is replaced.

    Returns
    -------
    callable
        The decorator. The converter takes a :class:`Node` and returns a Relax expression, a list of
        them for several outputs (None for one that nothing uses), or None to leave the node to
        TVM's own converter. It raises :class:`Unsupported`.

    Raises
    ------
    UserError
        By the decorator, for an operator that has a converter.
    """
    return CONVERTERS.register(
        *names, replace=replace, since=since, refuses=refuses, takes_extents=takes_extents
    )


def other_than(**supported: tuple[Any, ...]) -> Callable[[onnx.NodeProto], Unsupported | None]:
    """Refuse nodes with other values of attributes than those given; absent attributes pass."""

    def refusal(node: onnx.NodeProto) -> Unsupported | None:
        for attribute in node.attribute:
            allowed = supported.get(attribute.name)
            if allowed is None:
                continue
            value = helper.get_attribute_value(attribute)
            value = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
            if value not in allowed:
                listed = " or ".join(map(str, allowed))
                return Unsupported(f"with {attribute.name}={value}", f"use {listed}")
        return None

    return refusal


def qualified_name(node: onnx.NodeProto) -> str:
    """Name a node's operator, with its domain unless that is ONNX's own: ``com.acme::Foo``."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"


def defined(op_type: str, opset: int) -> bool:
    """Tell whether ONNX defines a standard operator in a version, at most the newest installed."""
    return bool(defs.has(op_type, max(0, min(opset, defs.onnx_opset_version())), ""))


def covers(node: onnx.NodeProto, versions: Mapping[str, int]) -> bool:
    """Tell whether a converter knows a node's operator in the version that the model uses.

    Parameters
    ----------
    versions
        The model's version of each domain; ONNX's own is ``""``.
    """
    converter = CONVERTERS.get(qualified_name(node))
    if converter is None:
        return False
    domain = "" if node.domain in STANDARD else node.domain
    if converter.since is not None:
        return versions.get(domain, 1) >= converter.since
    return bool(domain) or defined(node.op_type, versions.get("", 0))
