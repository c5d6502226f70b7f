"""What no one reads of a tensor is not computed: ``norm(x W)[:, 0] = norm(x[:, 0] W)``.

From the results back, each value is asked which part of it is read: the smallest box around all
that its readers read. Operators that compute the elements along an axis independently pass the
part on to their operands: element by element, products (rows, columns and batches), norms, softmax
and reductions (along other axes), attention (queries). Then each value is computed of parts of its
operands.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...core.decisions import Decision, record
from ...core.names.source import names_of, sources_of
from ...frontend.normalize.engine import Scope, rewrite
from ..egraph.changes import Change, note
from ..egraph.facts.extents import extents
from ..laws.shapes.slices import Range
from ..search.judge import is_anchor
from .reads import Part, Read, read_of, shape_of, tensors_of

_NAME = "unread_parts"


@tvm.transform.module_pass(opt_level=0, name="SkipUnreadParts")
class SkipUnreadParts:
    """``f(x)[part] = f(x[part])``: products, norms and attention of what is read of them only.

    A classifier reads one row of its last layer, so all of that layer behind keys and values is
    computed for one row. Elements that are read are the same sums of the same terms.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function."""
        known: dict[int, tuple[Scope, _Writer]] = {}

        def rule(value: Any, scope: Scope) -> Any:
            if id(scope) not in known:  # with the scope itself, whose id none other has then
                known[id(scope)] = scope, _Writer(_reads_of(scope.func))
            return known[id(scope)][1].write(value, scope)

        return rewrite(mod, rule)


class _Writer:
    """Writes values of parts; what they stand for is dropped, as nothing reads it any more."""

    def __init__(self, found: dict[int, tuple[relax.Call, Read]]) -> None:
        self._found = found
        self._narrow: dict[int, tuple[relax.Var, Part]] = {}

    def write(self, value: Any, scope: Scope) -> Any:
        """Return what takes a value's place; None where it stays, or parts take its place."""
        call, read = self._found.get(hash(scope.target), (None, None))
        if call is None or read is None:
            return None
        old = tensors_of(call)
        new = tensors_of(value)
        given = [
            None if part is None else self._cut(before, now, part, scope)
            for before, now, part in zip(old, new, read.parts, strict=True)
        ]
        written = read.write(given)
        if not any(read.own):
            return written
        var = written if isinstance(written, relax.Var) else scope.emit(written)
        self._narrow[hash(scope.target)] = var, read.own
        if is_anchor(call):
            _tell(scope.target, read.own)
        return None

    def _cut(self, old: Any, new: Any, part: Part, scope: Scope) -> Any:
        """Take a part of an operand, of which there may be a larger part already."""
        whole: Part = (None,) * len(part)
        source, given = self._narrow.get(hash(old), (new, whole))
        cuts = {
            axis: _within(wanted, had)
            for axis, (wanted, had) in enumerate(zip(part, given, strict=True))
            if wanted is not None and wanted != had
        }
        if not cuts:
            return source
        begins, ends, strides = zip(
            *((r.begin, _last(r) + 1, r.stride) for r in cuts.values()), strict=True
        )
        cut = relax.op.strided_slice(source, [*cuts], [*begins], [*ends], [*strides])
        return scope.emit(cut)


def _tell(var: relax.Var, part: Part) -> None:
    kept = shape_of(var.ty, part)
    whole, less = (" x ".join(map(str, shape)) for shape in (extents(var.ty), kept))
    sentence = f"Only {less} of {whole} elements are read: no others are computed."
    names = names_of(sources_of(var))
    record(Decision(var.name, "", "accepted", _NAME, sentence, producer_names=names))
    note(Change("", var.name, (_NAME,), "f(x)[part]", "f(x[part])", None, names=names))


def _reads_of(func: relax.Function) -> dict[int, tuple[relax.Call, Read]]:
    """Find the values to be written of parts, by variable; empty where none of them is costly."""
    read: dict[int, Part] = {}  # what readers behind read of a variable
    found: dict[int, tuple[relax.Call, Read]] = {}

    def add(var: Any, part: Part) -> None:
        if isinstance(var, relax.Var):
            known = read.get(hash(var))
            read[hash(var)] = part if known is None else _hull(known, part)

    def add_whole(expr: Any) -> None:
        for var in relax.analysis.free_vars(expr):
            add(var, _whole(var))

    add_whole(func.body.body)
    is_costly = False
    for block in reversed(func.body.blocks):
        for binding in reversed(block.bindings):
            value, wanted = binding.value, read.get(hash(binding.var))
            if wanted is None and isinstance(block, relax.DataflowBlock):
                continue
            is_cast = isinstance(binding, relax.MatchCast)
            one = None if wanted is None or is_cast else read_of(value, wanted)
            if one is None:
                add_whole(value)
                continue
            parts = list(zip(tensors_of(value), one.parts, strict=True))
            for operand, part in parts:
                if part is not None:
                    add(operand, part)
            is_costly |= any(one.own) and is_anchor(value)
            if any(one.own) or any(part is None or any(part) for _, part in parts):
                found[hash(binding.var)] = value, one
    narrow = {var for var, (_, one) in found.items() if any(one.own)} if is_costly else set()
    return {
        var: (value, one)
        for var, (value, one) in found.items()
        if var in narrow or any(hash(o) in narrow for o in tensors_of(value))
    }


def _whole(var: relax.Var) -> Part:
    return (None,) * (var.ty.ndim if isinstance(var.ty, relax.TensorType) else 0)


def _hull(first: Part, second: Part) -> Part:
    pairs = zip(first, second, strict=True)
    return tuple(
        None if a is None or b is None else a if a == b else _around(a, b) for a, b in pairs
    )


def _around(a: Range, b: Range) -> Range:
    begin, last = min(a.begin, b.begin), max(_last(a), _last(b))
    return Range(begin, last + 1 - begin, 1)


def _last(r: Range) -> int:
    return r.begin + (r.length - 1) * r.stride


def _within(r: Range, given: Range | None) -> Range:
    """Count from the first element of a range that holds another one."""
    if given is None:
        return r
    return Range((r.begin - given.begin) // given.stride, r.length, r.stride // given.stride)
