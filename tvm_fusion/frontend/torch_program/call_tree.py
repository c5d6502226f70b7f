"""The structure of an exported program's arguments and results, from torch's pytree."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree


def call_of(program: torch.export.ExportedProgram, results: Sequence[str]) -> dict[str, Any] | None:
    """Describe how a program's module is called; see ``deploy.runtime.artifact.call_tree``.

    Parameters
    ----------
    program
        Its inputs are named as the signature's.
    results
        Names of all results of the module, those that are None too.

    Returns
    -------
    dict or None
        ``arguments``, ``keywords`` and ``results``; None where a structure cannot be written.
    """
    spec, entry = program.call_spec, program.module_call_graph[0].signature
    leaves = [_leaf(s.arg) for s in program.graph_signature.input_specs if _is_of_user(s)]
    if spec.in_spec is None or len(leaves) != spec.in_spec.num_leaves:
        return None
    values = iter(leaves)
    try:
        positional, keywords = (_items(one, values) for one in spec.in_spec.children())
        returned = _tree(spec.out_spec, _results(program, results))
    except _Unknown:
        return None
    known = getattr(entry, "forward_arg_names", None) or ()
    names = [known[i] if i < len(known) else f"argument_{i}" for i in range(len(positional))]
    passed = spec.in_spec.children()[1].context
    return {
        "arguments": [[name, tree] for name, tree in zip(names, positional, strict=True)],
        "keywords": [[name, tree] for name, tree in zip(passed, keywords, strict=True)],
        "results": returned,
    }


class _Unknown(Exception):
    """A structure of a class whose fields are not known."""


def _is_of_user(spec: Any) -> bool:
    return spec.kind is InputKind.USER_INPUT


def _leaf(argument: Any) -> Any:
    return {"value": argument.value} if isinstance(argument, ConstantArgument) else argument.name


def _results(program: torch.export.ExportedProgram, names: Sequence[str]) -> Iterator[Any]:
    """Yield leaves for the module's results, which stand behind what it changes in place."""
    (node,) = program.graph.find_nodes(op="output")
    pairs = zip(program.graph_signature.output_specs, node.args[0], strict=True)
    values = [value for spec, value in pairs if spec.kind is OutputKind.USER_OUTPUT]
    for name, value in zip(names, values, strict=True):
        yield {"value": None} if value is None else name


def _items(spec: pytree.TreeSpec, leaves: Iterator[Any]) -> list[Any]:
    return [_tree(child, leaves) for child in spec.children()]


def _tree(spec: pytree.TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return next(leaves)
    kind, context = spec.type, spec.context
    items = _items(spec, leaves)
    if kind is None:
        raise _Unknown
    if kind in (tuple, list):
        return {"type": kind.__name__, "keys": [], "items": items}
    if issubclass(kind, dict) and not dataclasses.is_dataclass(kind):
        keys = context if isinstance(context, list) else []
        return {"type": "dict", "keys": _names(keys, items), "items": items}
    if isinstance(context, type):  # a named tuple's
        kind, keys = context, list(getattr(context, "_fields", ()))
    elif dataclasses.is_dataclass(kind):
        is_nested = isinstance(context, (list, tuple)) and context and _is_list(context[0])
        keys = list(context[0] if is_nested else context)
    else:
        raise _Unknown
    name = f"{kind.__module__}:{kind.__qualname__}"
    return {"type": name, "keys": _names(keys, items), "items": items}


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _names(keys: Sequence[Any], items: Sequence[Any]) -> list[Any]:
    if len(keys) != len(items) or not all(isinstance(key, (str, int)) for key in keys):
        raise _Unknown
    return list(keys)
