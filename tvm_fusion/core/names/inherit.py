"""Where new operators get the names of those that they replace: a comparison of two modules.

A pass that keeps variables keeps names (:mod:`.source`). One that makes new variables does
not say which old ones these stand for, so the function before and the one after are compared, as
dataflow graphs:

1. Operators correspond if they bind the same variable, or one of the same name and sources.
2. From the inputs down: the same operator over operands that correspond.
3. From the outputs up: operands at the same place of operators that correspond.

What is left was rewritten. A *rewrite* is a place where an operator reads something else than
before; it reaches, through what is left, old operators and new ones. Those of one kind that the
same rewrites reach, equally many before and after, correspond as well. The other new ones get the
sources of all old ones that their rewrites have in common, or else of all that they reach (a
product of joined weights those of the three that it computes). What was replaced by nothing (an
identity, a scale that went into weights) names the operator that is computed instead, or that
reads what it read. A rewrite reaches :data:`.source.MOST` operators at most, so the
comparison takes linear time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir.transform import Pass, PassContext

from ..untouched import is_rewritable
from .source import MOST, Sources, bindings_of, joined, operands_of, sources_of, with_sources

_CALL_TIR = "relax.call_tir"
_ROUNDS = 2  # in which rewrites are parted by what they have in common


def inheriting(*passes: Pass) -> list[Pass]:
    """Make passes after each of which new operators have the names of those they replace.

    Returns
    -------
    list of Pass
        Module passes, whose results are structurally equal to those of the passes given.
    """
    return [_Inheriting(one) for one in passes]


@tvm.transform.module_pass(opt_level=0, name="Inheriting")
class _Inheriting:
    def __init__(self, one: Pass) -> None:
        self._pass = one

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        return inherit(mod, self._pass(mod))


def inherit(before: tvm.IRModule, after: tvm.IRModule) -> tvm.IRModule:
    """Attach to new operators the sources of those that they replace.

    Parameters
    ----------
    before, after
        What passes took and gave. Functions are compared with those of the same name.

    Returns
    -------
    tvm.IRModule
        The same object if there is nothing to attach.
    """
    if after.same_as(before):
        return after
    old = {gvar.name_hint: func for gvar, func in before.functions.items()}
    changed = {}
    for gvar, func in after.functions.items():
        was = old.get(gvar.name_hint)
        if not is_rewritable(func) or not isinstance(was, relax.Function) or was.same_as(func):
            continue
        comparison = _Comparison(was, func)
        if comparison.has_other_variables and (found := comparison.sources()):
            changed[gvar] = with_sources(func, found)
    if not changed:
        return after
    after = after.clone()
    for gvar, func in changed.items():
        after.update_func(gvar, func)
    return after


@dataclass(eq=False)
class _Node:
    """An operator: a binding that computes something, or names something."""

    place: int
    binding: relax.Binding
    match: _Node | None = None  # the one that it corresponds to
    rewrites: list[_Rewrite] = field(default_factory=list)  # that reach it
    is_named: bool = False  # whether a new operator has its sources

    @cached_property
    def var(self) -> relax.Var:
        return self.binding.var

    @cached_property
    def sources(self) -> Sources:
        return sources_of(self.var)

    @cached_property
    def value(self) -> Any:
        return self.binding.value

    @cached_property
    def operands(self) -> list[int]:
        """The variables that it reads, by their hashes."""
        return [hash(x) for x in operands_of(self.value) if isinstance(x, relax.Var)]

    @cached_property
    def key(self) -> Hashable:
        """What tells operators apart, whatever tensors they read."""
        constants = (x for x in operands_of(self.value) if isinstance(x, ir.GenericConst))
        tensors = (x.value for x in constants if isinstance(x.value, tvm_ffi.Tensor))
        return _kind(self.value), *(tuple(x.shape) for x in tensors)

    @property
    def is_unchanged(self) -> bool:
        """Whether it computes the same of the same variables as before."""
        return self.match is not None and self.value.same_as(self.match.value)


@dataclass(eq=False)
class _Rewrite:
    """A place where something else is read than before."""

    # What was read there and is read there, of what does not correspond to anything.
    gone: list[_Node]
    made: list[_Node]
    reader: _Node | None  # the operator that reads it, after; None at the end of the function
    old: list[_Node] = field(default_factory=list)  # that it reaches
    new: list[_Node] = field(default_factory=list)


class _Comparison:
    def __init__(self, before: relax.Function, after: relax.Function) -> None:
        self._old, self._new = _nodes(before), _nodes(after)
        self._before_and_after = before, after
        self._leaves: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []
        self._found: dict[_Node, Sources] = {}

    @property
    def has_other_variables(self) -> bool:
        """Whether there are variables on one side alone; all others carry their names."""
        return self._old.keys() != self._new.keys()

    def sources(self) -> dict[Any, Sources]:
        """Return the sources of variables that have others than they carry."""
        if any(node.sources for node in self._old.values()):
            before, after = self._before_and_after
            if len(before.params) == len(after.params):
                pairs = zip(before.params, after.params, strict=True)
                self._leaves = {hash(new): hash(old) for old, new in pairs}
            self._ends = list(zip(_end(before), _end(after), strict=False))
            self._by_variable()
            self._downwards()
            self._upwards()
            rewrites = self._rewrites()
            for _ in range(_ROUNDS):
                if not self._pair_by_rewrites():
                    break
                self._upwards()
                rewrites = self._rewrites()  # which those found now have parted
            self._replaced(rewrites)
        for new in self._new.values():
            if new.match is not None and not new.sources:
                own = self._found.get(new, ())
                self._found[new] = joined([new.match.sources, own])
        return {
            node.var: sources
            for node, sources in self._found.items()
            if sources and sources != node.sources
        }

    def _by_variable(self) -> None:
        for at, new in self._new.items():
            if at in self._old:
                _pair(self._old[at], new)
        alike: dict[Hashable, _Node] = {}
        for old in self._old.values():
            if old.match is None and old.sources:
                alike.setdefault((old.var.name, old.sources), old)
        for new in self._new.values():
            if new.match is None and new.sources:
                same = alike.pop((new.var.name, new.sources), None)
                if same is not None:
                    _pair(same, new)

    def _downwards(self) -> None:
        waiting: dict[Hashable, list[_Node]] = defaultdict(list)
        for old in reversed(self._old.values()):  # the first is taken first
            if old.match is None:
                waiting[(old.key, *old.operands)].append(old)
        for new in self._new.values():
            if new.match is None:
                alike = waiting.get((new.key, *map(self._before, new.operands)))
                if alike:
                    _pair(alike.pop(), new)

    def _upwards(self) -> None:
        for ends in self._ends:
            self._meet(*ends)
        for new in reversed(self._new.values()):
            if new.match is None or new.is_unchanged:
                continue
            if _is_alike(new.match, new):
                for ends in zip(new.match.operands, new.operands, strict=True):
                    self._meet(*ends)

    def _meet(self, before: int, after: int) -> None:
        old, new = _left(self._old, before), _left(self._new, after)
        if old and new and old.key == new.key:
            _pair(old, new)

    def _rewrites(self) -> list[_Rewrite]:
        """Find every place where something else is read, and what it reaches."""
        found: dict[Hashable, _Rewrite] = {}
        for node in (*self._old.values(), *self._new.values()):
            node.rewrites = []

        def add(
            before: Iterable[int],
            after: Iterable[int],
            reader: _Node | None,
            is_changed: bool = False,
        ) -> None:
            gone = [n for n in (_left(self._old, x) for x in before) if n]
            made = [n for n in (_left(self._new, x) for x in after) if n]
            if gone or made:
                own = None if made and not is_changed else reader  # whose names count
                found.setdefault((*gone, None, *made, own), _Rewrite(gone, made, reader))

        for new in self._new.values():
            old = new.match
            if old is None or new.is_unchanged:
                continue
            if _is_alike(old, new):
                for before, after in zip(old.operands, new.operands, strict=True):
                    add([before], [after], new)
            else:
                add(old.operands, new.operands, new, is_changed=True)
        for before, after in self._ends:
            add([before], [after], None)
        for rewrite in found.values():
            rewrite.old = _reached(self._old, rewrite.gone)
            rewrite.new = _reached(self._new, rewrite.made)
            for node in (*rewrite.old, *rewrite.new):
                node.rewrites.append(rewrite)
        return list(found.values())

    def _replaced(self, rewrites: list[_Rewrite]) -> None:
        for new in self._new.values():
            if new.match is None and new.rewrites:
                self._name(new)
        for rewrite in rewrites:
            lost = [node for node in rewrite.old if not node.match and not node.is_named]
            lost.sort(key=_place)
            heirs = rewrite.made or [n for n in (rewrite.reader,) if n]
            for heir in heirs:
                if lost:
                    own = self._found.get(heir) or _own(heir)
                    self._found[heir] = joined([own, *(node.sources for node in lost)])
                    for node in lost:
                        node.is_named = bool(rewrite.made)
        for new in self._new.values():
            if new.match is None and not self._found.get(new):  # what was added
                around = [self._new[x] for x in new.operands if x in self._new]
                around += [rewrite.reader for rewrite in new.rewrites if rewrite.reader]
                known = (self._found.get(node) or _own(node) for node in around)
                self._found[new] = next(filter(None, known), ())

    def _pair_by_rewrites(self) -> bool:
        """Pair operators of one kind that the same rewrites reach, if they are equally many."""
        alike: dict[Hashable, tuple[list[_Node], list[_Node]]] = defaultdict(lambda: ([], []))
        for nodes, side in ((self._old, 0), (self._new, 1)):
            for node in nodes.values():
                if node.match is None and node.rewrites:
                    alike[(node.key, *node.rewrites)][side].append(node)
        pairs = [
            pair
            for before, after in alike.values()
            if len(before) == len(after)
            for pair in zip(before, after, strict=True)
        ]
        for old, new in pairs:
            _pair(old, new)
        return bool(pairs)

    def _name(self, new: _Node) -> None:
        """Give a new operator the sources of what it replaces."""
        reached = [[n for n in rewrite.old if n.match is None] for rewrite in new.rewrites]
        first, *others = reached
        common = set(first).intersection(*others)
        replaced = [node for node in first if node in common]
        if not replaced:
            replaced = list(dict.fromkeys(node for nodes in reached for node in nodes))
        replaced.sort(key=_place)
        for node in replaced:
            node.is_named = True
        readers = [rewrite.reader for rewrite in new.rewrites if rewrite.reader]
        changed = [r for r in readers if r.match and not _is_alike(r.match, r)]
        sources = joined([*map(_own, changed), *(node.sources for node in replaced)])
        self._found[new] = sources

    def _before(self, operand: int) -> int | None:
        """Return what an operand was before; None for what is new."""
        node = self._new.get(operand)
        if node is None:
            return self._leaves.get(operand, operand)
        return None if node.match is None else hash(node.match.var)


def _place(node: _Node) -> int:
    return node.place


def _own(node: _Node) -> Sources:
    return node.sources or (node.match.sources if node.match is not None else ())


def _pair(old: _Node, new: _Node) -> None:
    old.match, new.match = new, old


def _is_alike(old: _Node, new: _Node) -> bool:
    return old.key == new.key and len(old.operands) == len(new.operands)


def _left(nodes: dict[int, _Node], operand: int) -> _Node | None:
    """Return an operand's operator if nothing corresponds to it."""
    node = nodes.get(operand)
    return node if node is not None and node.match is None else None


def _reached(nodes: dict[int, _Node], heads: list[_Node]) -> list[_Node]:
    """List what is left and computes some operators, those first, the nearest before others."""
    found = dict.fromkeys(heads)
    waiting = list(heads)
    for node in waiting:
        for operand in node.operands:
            before = _left(nodes, operand)
            if before is not None and before not in found and len(found) < MOST:
                found[before] = None
                waiting.append(before)
    return list(found)


def _nodes(func: relax.Function) -> dict[int, _Node]:
    """Map variables, by their hashes, to what binds them, in order."""
    return {
        hash(binding.var): _Node(place, binding)
        for place, binding in enumerate(bindings_of(func.body))
    }


def _kind(value: Any) -> Hashable:
    if isinstance(value, relax.Call):
        op = value.op
        if isinstance(op, ir.Op) and op.name == _CALL_TIR:
            op = value.args[0]
        return op.name_hint if isinstance(op, ir.GlobalVar) else hash(op)
    if isinstance(value, relax.TupleGetItem):
        return value.index
    return type(value).__name__


def _end(func: relax.Function) -> list[int]:
    return [hash(x) for x in operands_of(func.body.body)]
