"""Nested arguments and results of a model: what a PyTorch module takes and returns. Imports no TVM.

A tree is plain JSON. A string is a leaf: the name of an input or output; ``{"value": v}`` is a
constant, such as None. Everything else is ``{"type", "keys", "items"}``: a tuple, list or dict, or
the name of a class that takes its fields as keywords. ``arguments`` and ``keywords`` of a call have
trees by parameter.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import UserError


def names_of(tree: Any) -> list[str]:
    """List the leaves of a tree in order."""
    if isinstance(tree, str):
        return [tree]
    return [name for item in tree.get("items", ()) for name in names_of(item)]


def flat_inputs(
    call: Mapping[str, Any], positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Bring the arguments of a call to inputs by name.

    Parameters
    ----------
    call
        ``arguments``: pairs of parameter and tree in order; ``keywords``: the same of parameters
        that are passed by keyword.
    named : mapping of str to object
        Arguments by parameter, and inputs by their own names.

    Raises
    ------
    UserError
        For too many arguments, and one of another structure than the model was made for.
    """
    parameters = [*call["arguments"], *call["keywords"]]
    if len(positional) > len(call["arguments"]):
        names = ", ".join(repr(name) for name, _ in parameters)
        raise UserError(
            f"{len(positional)} arguments", f"{len(call['arguments'])} in order, of {names}"
        )
    given = {name: value for (name, _), value in zip(parameters, positional, strict=False)}
    flat: dict[str, Any] = {}
    trees = dict(parameters)
    for name, value in named.items():
        if name in given:
            raise UserError(f"argument {name!r} is given twice", "each argument once")
        if name in trees:
            given[name] = value
        else:
            flat[name] = value
    for name, tree in parameters:
        if name in given:
            _flatten(tree, given[name], name, flat)
    return flat


def _flatten(tree: Any, value: Any, path: str, flat: dict[str, Any]) -> None:
    if isinstance(tree, str):
        flat[tree] = value
        return
    if "value" in tree:
        if value is not tree["value"] and value != tree["value"]:
            raise UserError(
                f"argument {path} is {value!r}",
                f"{tree['value']!r}, which the model was exported with",
            )
        return
    kind, keys, items = tree["type"], tree["keys"], tree["items"]
    if kind in ("tuple", "list"):
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(items):
            raise _other(path, value, f"a {kind} of {len(items)}")
        fields = list(value)
    elif isinstance(value, Mapping):
        if set(value) != set(keys):
            raise _other(path, value, f"the keys {', '.join(map(repr, keys))}")
        fields = [value[key] for key in keys]
    elif kind != "dict" and all(hasattr(value, key) for key in keys):
        fields = [getattr(value, key) for key in keys]
    else:
        raise _other(path, value, f"a {kind.rpartition(':')[2]} of {', '.join(map(repr, keys))}")
    for key, item, part in zip(keys or range(len(items)), items, fields, strict=True):
        _flatten(item, part, f"{path}[{key!r}]", flat)


def _other(path: str, value: Any, wanted: str) -> UserError:
    found = f"of type {type(value).__name__}"
    if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
        found += f" and length {len(value)}"
    return UserError(f"argument {path} is {found}", wanted)


def nested(tree: Any, outputs: Mapping[str, Any]) -> Any:
    """Put outputs into the structure that the model returns.

    A class that this process has not imported is a dict of its fields.
    """
    if isinstance(tree, str):
        return outputs[tree]
    if "value" in tree:
        return tree["value"]
    kind, keys = tree["type"], tree["keys"]
    items = [nested(item, outputs) for item in tree["items"]]
    if kind in ("tuple", "list"):
        return tuple(items) if kind == "tuple" else items
    fields = dict(zip(keys, items, strict=True))
    module, _, name = kind.partition(":")
    cls = getattr(sys.modules.get(module), name, None) if name else None
    return fields if cls is None else cls(**fields)
