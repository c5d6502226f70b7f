"""A program without internal maps: each output as one expression over inputs and reductions."""

import weakref
from collections.abc import Set
from dataclasses import replace

from tvm import ir

from ...core.contract.template import Refusal
from ...core.tir.loops import constant, find, index, substitute
from ...program.program import Program
from ...program.stage import Stage

MAX_NODES = 2000  # of one output's expression: beyond, compiling takes longer than computing


class _Answers:
    """What is known of one program, which several templates ask about, by what they keep."""

    def __init__(self) -> None:
        self.refusals: dict[frozenset[ir.Var], Refusal | None] = {}
        self.stages: dict[frozenset[ir.Var], tuple[Stage, ...]] = {}


_known: weakref.WeakKeyDictionary[Program, _Answers] = weakref.WeakKeyDictionary()


def inlined_size(program: Program, kept: Set[ir.Var] = frozenset()) -> Refusal | None:
    """Say why internal maps, but for the kept ones, cannot be inlined; ``None`` if they can."""
    known, key = _known.setdefault(program, _Answers()).refusals, frozenset(kept)
    if key not in known:
        known[key] = _inlined_size(program, kept)
    return known[key]


def inlined(program: Program, kept: Set[ir.Var] = frozenset()) -> tuple[Stage, ...]:
    """Substitute internal maps, but for the kept ones, into their readers."""
    known, key = _known.setdefault(program, _Answers()).stages, frozenset(kept)
    if key not in known:
        known[key] = _inlined(program, kept)
    return known[key]


def _inlined_size(program: Program, kept: Set[ir.Var]) -> Refusal | None:
    sizes: dict[ir.Var, int] = {}
    for stage in program.stages:
        size = 0
        for value in stage.values:
            size += len(find(value, ir.Expr))
            if sizes:
                size += sum(sizes.get(load.source, 0) for load in find(value, ir.TensorLoad))
        if size > MAX_NODES:
            sentence = f"{stage.title} would be an expression of more than {MAX_NODES} nodes."
            return Refusal("expression_too_large", sentence)
        if stage.targets[0] in kept:
            sizes[stage.targets[0]] = 1
        elif stage.is_map and stage.targets[0] in program.internal:
            if len(stage.targets) > 1 or not _is_invertible(stage):
                sentence = (
                    f"{stage.title} cannot be inlined into its readers: "
                    "the point that writes an element does not follow from the element's indices."
                )
                return Refusal("not_inlinable", sentence)
            sizes[stage.targets[0]] = size
    return None


def _inlined(program: Program, kept: Set[ir.Var]) -> tuple[Stage, ...]:
    definitions: dict[ir.Var, Stage] = {}
    left: list[Stage] = []
    internal = set(program.internal) - kept

    def load(node: ir.TensorLoad) -> ir.Expr:
        stage = definitions.get(node.source)
        if stage is None:
            return node
        places = {
            written: read
            for written, read in zip(stage.indices[0], node.indices, strict=True)
            if isinstance(written, ir.Var)
        }
        zeros = {a.var: index(0) for a in stage.axes if a.var not in places}
        return substitute(stage.values[0], {**zeros, **places})

    for stage in program.stages:
        if definitions:
            stage = replace(stage, values=tuple(substitute(v, {}, load) for v in stage.values))
        if stage.is_map and stage.targets[0] in internal:
            definitions[stage.targets[0]] = stage
        else:
            left.append(stage)
    return tuple(left)


def _is_invertible(stage: Stage) -> bool:
    """Whether every axis stands alone at one place of the write index."""
    places = [i for i in stage.indices[0] if isinstance(i, ir.Var)]
    rest = [i for i in stage.indices[0] if not isinstance(i, ir.Var)]
    wide = {a.var for a in stage.axes if constant(a.extent) != 1}
    return (
        len(set(places)) == len(places)
        and wide <= set(places)
        and all(constant(i) == 0 for i in rest)
    )
