"""Results of an exported program: their names, and those that are no tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...core.decisions import Decision, record
from ...errors import UserError


def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Name outputs by their place in what the module returns: ``logits``, ``cache.0``, output_1."""
    spec = program.call_spec.out_spec
    leaves = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names = []
    for path, index in pytree.tree_flatten_with_path(leaves)[0]:
        keys = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
        plain = all(key.isdigit() for key in keys)
        names.append("_".join(["output", *(keys or [str(index)])]) if plain else ".".join(keys))
    return names


def drop_none(program: torch.export.ExportedProgram, source: str) -> list[str]:
    """Take results that are None out of a program, and name the others.

    Parameters
    ----------
    program : ExportedProgram
        Its graph and signature are changed; the results that the module returns come first.
    source : str
        What to call it in errors.

    Returns
    -------
    list of str
        Names of the results that are left, as if nothing had been dropped.

    Raises
    ------
    UserError
        For results that are neither tensors nor numbers, and where all are None.
    """
    names = output_names(program)
    (node,) = program.graph.find_nodes(op="output")
    values: tuple[Any, ...] = tuple(node.args[0])
    for name, value in zip(names, values, strict=False):
        if value is None:
            sentence = f"The result {name} is None: it is no output."
            record(Decision(source, name, "accepted", "none_dropped", sentence))
        elif not isinstance(value, torch.fx.Node | bool | int | float):
            what = f"{source} returns {name} of type {type(value).__name__}"
            raise UserError(what, "tensors", "return only tensors, or None")
    is_kept = [value is not None for value in values]
    if not any(is_kept):
        raise UserError(f"{source} returns no tensor", "at least one", "return a tensor")
    if not all(is_kept):
        specs = program.graph_signature.output_specs
        specs[:] = [spec for spec, kept in zip(specs, is_kept, strict=True) if kept]
        node.args = (tuple(value for value in values if value is not None),)
    return [name for name, kept in zip(names, is_kept, strict=False) if kept]
