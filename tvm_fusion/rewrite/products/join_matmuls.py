"""Matrix products and convolutions that share their left operand, joined into one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...core.constants.evaluate import operand_of
from ...core.constants.weight_names import derived
from ...core.decisions import Decision, record
from ...core.names.source import names_of, sources_of
from ...core.untouched import is_rewritable
from ...frontend.normalize.engine import op_name
from ..egraph.changes import Change, Gain, note
from ..search.judge import Choose, always
from .joined_operands import Concatenate, Constants, OfConstants, blocks, in_several, still_read

MOST = 6  # siblings of which one may be left out


@dataclass(frozen=True)
class _Siblings:
    """Products of one left operand, in the order of their bindings; two or more."""

    products: tuple[relax.Var, ...]
    calls: tuple[relax.Call, ...]
    of_constants: OfConstants
    gain: Gain | None = None

    def weight(self, concatenate: Concatenate) -> relax.Expr | None:
        """Write the joined weight; ``None`` where there is none."""
        weights = [call.args[1] for call in self.calls]
        return self.of_constants.joined(weights, _axes(self.calls[0])[0], concatenate)

    @property
    def constants(self) -> list[Constants]:
        """The constants that are concatenated, those of all products."""
        found: list[Constants] = []

        def note(parts: Constants, _axis: int) -> relax.Expr:
            found.append(parts)
            return parts[0]

        return found if self.weight(note) is not None else []

    @property
    def name(self) -> str:
        return ", ".join(v.name for v in self.products)

    @property
    def names(self) -> tuple[str, ...]:
        """The user's names of the products."""
        return names_of(source for v in self.products for source in sources_of(v))


@tvm.transform.module_pass(opt_level=0, name="JoinMatmuls")
class JoinMatmuls:
    """``x [A | B | ...] = [x A | x B | ...]`` for constant matrices A, B, ...

    The left operand is read once, and what was several narrow products is one wide one: query, key
    and value of attention, gate and up of a gated feed-forward layer. Its columns are split again;
    the pieces keep their values, each element being the same sum of the same terms.

    Where matrices are computed of constants, such as numbers of few bits and scales, these are
    joined. So are convolutions of one image that differ in their channels alone, along these. A
    matrix that something else reads as well stays, or it would be stored twice.

    Parameters
    ----------
    choose
        Says of each place whether it pays.
    enlarge
        Whether convolutions with windows of several sizes are joined, too: zeros around the smaller
        ones meet elements of the image that were not read, of which an infinity becomes NaN.

    Examples
    --------
    >>> mod = module(lambda x: op.matmul(x, weight(64, 64)) + op.matmul(x, weight(64, 64)), (8, 64))
    >>> calls(JoinMatmuls()(mod))
    ['relax.matmul', 'relax.split', 'relax.add']
    """

    def __init__(self, choose: Choose = always, enlarge: bool = False) -> None:
        self._choose = choose
        self._enlarge = enlarge

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Join in every rewritable function; each refusal is recorded."""
        ours = [(gvar, func) for gvar, func in mod.functions.items() if is_rewritable(func)]
        found = {gvar: _siblings(func, self._enlarge) for gvar, func in ours}
        groups = [s for some in found.values() for s in some]
        weights = [call.args[1] for siblings in groups for call in siblings.calls]
        shared = still_read(mod, weights) | in_several([s.constants for s in groups])
        joined: dict[Hashable, GenericConst] = {}
        result = mod
        for gvar, func in ours:
            alike = [g for s in found[gvar] if (g := _without(s, shared)) is not None]
            groups = [g for s in alike if (g := _chosen(func, s, self._choose)) is not None]
            if groups:
                result = mod.clone() if result is mod else result
                new = _Joiner(mod, groups, joined).visit_expr(func)
                result[gvar] = relax.analysis.remove_all_unused(new)
        return result


def _siblings(func: relax.Function, enlarge: bool) -> list[_Siblings]:
    """Find products in one block that have the left operand and the type in common."""
    found: list[_Siblings] = []
    of_constants = OfConstants(func)
    for block in blocks(func):
        by_left: dict[int, list[relax.VarBinding]] = defaultdict(list)
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding) and _is_product(binding.value):
                by_left[hash(binding.value.args[0])].append(binding)
        for siblings in by_left.values():
            if len(siblings) < 2:
                continue
            alike: dict[Hashable, list[relax.VarBinding]] = defaultdict(list)
            for binding in siblings:
                reason = _obstacle(binding.value, of_constants)
                if reason is None:
                    alike[_kind(binding.value, of_constants, enlarge)].append(binding)
                else:
                    _refuse(binding.var, *reason)
            for same in alike.values():
                if len(same) > 1:
                    products, values = (
                        tuple(getattr(b, n) for b in same) for n in ("var", "value")
                    )
                    group = _Siblings(products, values, of_constants)
                    if group.constants:
                        found.append(group)
                        continue
                    for product in products:
                        sentence = "Its packed weight and the others' are no parts of one."
                        _refuse(product, "packed_apart", sentence)
                elif len(alike) > 1:
                    _refuse(
                        same[0].var,
                        "kind_differs",
                        "No other product of its activation has the same dtypes and window.",
                    )
    return found


def _obstacle(product: relax.Call, of_constants: OfConstants) -> tuple[str, str] | None:
    """Say why a product that has siblings stays alone."""
    left, right = product.args
    if left.ty.ndim < 0:
        return "rank_unknown", "The rank of its activation is not known."
    if not of_constants.knows(right):
        return "not_constant", "Its weight is computed at run time: joining would copy it."
    if op_name(product) != "relax.matmul":
        attrs = product.attrs
        if int(attrs.groups) > 1:
            return (
                "groups",
                f"It has {attrs.groups} groups, whose channels are not those of others.",
            )
        layouts = str(attrs.kernel_layout), str(attrs.out_layout or attrs.data_layout)
        if not all(name.isupper() for name in layouts):
            return "layout", "Its channels are along several axes."
        return None
    if right.ty.ndim != 2:
        return "not_a_matrix", f"Its weight has {right.ty.ndim} dimensions, not two."
    return None


def _kind(product: relax.Call, of_constants: OfConstants, enlarge: bool) -> Hashable:
    """Return what products that are joined have in common besides the left operand."""
    weight, attrs = product.args[1], product.attrs
    name, dtypes = product.op.name, (of_constants.kind(weight), str(product.ty.dtype))
    is_matmul = op_name(product) == "relax.matmul"
    is_constant = isinstance(weight, GenericConst)
    if enlarge and is_constant and not is_matmul and {*map(int, attrs.dilation)} == {1}:
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        window = _Window.of(product)
        return name, layouts, *map(int, attrs.strides), *window.rest, *dtypes
    sizes = [int(n) for i, n in enumerate(weight.ty.shape.values) if i != _axes(product)[0]]
    return name, None if attrs is None else tvm_ffi.structural_hash(attrs), *sizes, *dtypes


@dataclass(frozen=True)
class _Window:
    """The pixels that a convolution reads around one, along each axis of the image."""

    # Counted from that pixel on: how many lie before it, and how many do not.
    before: tuple[int, ...]
    behind: tuple[int, ...]
    rest: tuple[int, ...]  # by how much the image grows with its padding, less the window

    @classmethod
    def of(cls, conv: relax.Call) -> _Window:
        layout, padding = str(conv.attrs.kernel_layout), [int(n) for n in conv.attrs.padding]
        shape, half = conv.args[1].value.shape, len(padding) // 2
        sizes = [int(n) for axis, n in zip(layout, shape, strict=True) if axis not in "OI"]
        pairs = list(zip(sizes, padding[:half], padding[half:], strict=True))
        return cls(
            tuple(begin for _, begin, _ in pairs),
            tuple(size - begin for size, begin, _ in pairs),
            tuple(begin + end - size for size, begin, end in pairs),
        )

    @classmethod
    def around(cls, windows: Sequence[_Window]) -> _Window:
        """Return the smallest one that holds all."""
        before, behind = (
            tuple(map(max, zip(*(getattr(w, side) for w in windows), strict=True)))
            for side in ("before", "behind")
        )
        return cls(before, behind, windows[0].rest)

    def padded(self, conv: relax.Call, weight: np.ndarray) -> np.ndarray:
        """Put zeros around the weights of a convolution with a smaller window."""
        own = _Window.of(conv)
        sides = iter(
            (b - c, d - e)
            for b, c, d, e in zip(self.before, own.before, self.behind, own.behind, strict=True)
        )
        layout = str(conv.attrs.kernel_layout)
        return np.pad(weight, [(0, 0) if axis in "OI" else next(sides) for axis in layout])

    def convolution(self, like: relax.Call, image: Any, weight: GenericConst) -> relax.Call:
        """Write a convolution with this window, which is otherwise like another one."""
        ends = [r + e for r, e in zip(self.rest, self.behind, strict=True)]
        names = ("strides", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
        given = {name: getattr(like.attrs, name) for name in (*names, "out_dtype")}
        write = getattr(relax.op.nn, op_name(like).removeprefix("relax.nn."))
        return write(image, weight, padding=[*self.before, *ends], **given)


def _axes(product: relax.Call) -> tuple[int, int]:
    """Return the axes of the weight and of the result along which products are joined."""
    if op_name(product) == "relax.matmul":
        return 1, -1
    attrs = product.attrs
    layout = str(attrs.out_layout or attrs.data_layout)
    return str(attrs.kernel_layout).index("O"), layout.index("C")


def _without(siblings: _Siblings, shared: set[int]) -> _Siblings | None:
    """Leave out the products whose matrices are shared; None where fewer than two are left."""
    kept = []
    constants = siblings.constants
    for i, (var, call) in enumerate(zip(siblings.products, siblings.calls, strict=True)):
        if not any(hash(parts[i]) in shared for parts in constants):
            kept.append((var, call))
            continue
        _refuse(
            var,
            "weight_shared",
            "Its weight has other readers, and would be stored a second time.",
        )
    if len(kept) < 2:
        return None
    products, calls = zip(*kept, strict=True)
    return replace(siblings, products=products, calls=calls)


def _chosen(func: relax.Function, siblings: _Siblings, choose: Choose) -> _Siblings | None:
    """Return those of some siblings that are joined; None where that does not pay.

    Where all together do not, one of them may be the reason.
    """
    choice = choose(func, siblings.products)
    if choice.is_taken:
        return replace(siblings, gain=choice.gain)
    best, most_us = None, 0.0
    for left_out in range(len(siblings.products) if 2 < len(siblings.products) <= MOST else 0):
        products, calls = (
            (*part[:left_out], *part[left_out + 1 :])
            for part in (siblings.products, siblings.calls)
        )
        choice = choose(func, products)
        if choice.is_taken and (best is None or choice.us > most_us):
            best = replace(siblings, products=products, calls=calls, gain=choice.gain)
            most_us = choice.us
    return best


@mutator
class _Joiner(PyExprMutator):
    """Puts the joined product in the place of the first sibling."""

    def __init__(
        self,
        mod: tvm.IRModule,
        groups: list[_Siblings],
        joined: dict[Hashable, GenericConst],
    ) -> None:
        super().__init__(mod)
        self._joined = joined
        self._place = {hash(v): (g, i) for g in groups for i, v in enumerate(g.products)}
        self._pieces: dict[int, relax.Var] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if hash(binding.var) not in self._place:
            super().visit_var_binding_(binding)
            return
        siblings, position = self._place[hash(binding.var)]
        pieces = self._pieces.get(hash(siblings.products[0]))
        if pieces is None:
            pieces = self._join(siblings, binding.value)
            self._pieces[hash(siblings.products[0])] = pieces
        piece = self.builder_.normalize(relax.TupleGetItem(pieces, position))
        self.builder_.emit_normalized(relax.VarBinding(binding.var, piece))

    def _join(self, siblings: _Siblings, first: relax.Call) -> relax.Var:
        left, (axis, channels) = self.visit_expr(first.args[0]), _axes(first)
        calls = siblings.calls
        window = None
        if op_name(first) != "relax.matmul" and len({_Window.of(call) for call in calls}) > 1:
            window = _Window.around([_Window.of(call) for call in calls])
        matrix = siblings.weight(partial(self._constant, calls=calls, window=window))
        wide = self.builder_.emit(
            relax.Call(first.op, [left, matrix], first.attrs, first.ty_args)
            if window is None
            else window.convolution(first, left, matrix)
        )
        widths = [int(call.args[1].ty.shape[axis]) for call in calls]
        boundaries = list(accumulate(widths))[:-1]
        record(
            Decision(
                siblings.name,
                "",
                "accepted",
                "joined",
                f"Products of one activation are joined into one of {sum(widths)} columns.",
                producer_names=siblings.names,
            )
        )
        names = ", ".join(f"x {letter}" for letter in ascii_uppercase[: len(widths)])
        joined = " | ".join(ascii_uppercase[: len(widths)])
        rule, after = ("join_matmuls",), f"x [{joined}]"
        note(Change("", siblings.name, rule, names, after, siblings.gain, names=siblings.names))
        return self.builder_.emit(relax.op.split(wide, boundaries, axis=channels))

    def _constant(
        self, parts: Constants, axis: int, calls: Sequence[relax.Call], window: _Window | None
    ) -> GenericConst:
        """Concatenate constants; the same ones only once."""
        key = *map(hash, parts), axis, window
        if key not in self._joined:

            def joined(parts: Sequence[GenericConst]) -> GenericConst:
                arrays = [operand_of(part) for part in parts]
                if window is not None:
                    arrays = [window.padded(c, x) for c, x in zip(calls, arrays, strict=True)]
                together = np.concatenate(arrays, axis=axis)
                return relax.const(tvm.runtime.tensor(together))  # of an array it makes two copies

            self._joined[key] = derived(joined(parts), "concat", parts, joined)
        return self._joined[key]


def _is_product(value: Any) -> bool:
    name = op_name(value)
    is_convolution = name.startswith("relax.nn.conv") and not name.endswith("_transpose")
    return name == "relax.matmul" or is_convolution


def _refuse(product: relax.Var, code: str, sentence: str) -> None:
    record(Decision(product.name, "", "refused", code, sentence))
