"""Which form of a product a GPU's kernel takes: a table.

    form                  instead of                    chosen
    dual GEMM                                           by rank: the first that a product has
    ragged rows
    grouped convolution
    implicit GEMM
    weight along K
    as it is
    aligned rows          as it is                      by the least estimated time, of these and
    partial im2col        implicit GEMM, as it is       of what they stand for
    planes                as it is
    packed weight         implicit GEMM, as it is
    windows of pixels     implicit GEMM, as it is

A rank is a rule: an implicit GEMM is not compared with what would gather the same image. A row
gives what the kernel reads, its tile and its time, or a refusal with its sentence. A refusal of
another code than ``other_form`` ends the search: the group's operators are better apart.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ....core.contract.forms import OTHER_FORM, Form, other_form
from ....core.contract.template import Refusal
from ..tile.read_problem import LEAST_ROWS
from ..wgmma.dual_gemm import dual_gemm_tile
from .product import Product, Reading, no_dual
from .space import default, described
from .tile_forms import (
    GemmForm,
    aligned_rows_form,
    grouped_form,
    im2col_form,
    implicit_form,
    packed_weight_form,
    planes_form,
    ragged_tile,
    weight_along_k_form,
)

Found = GemmForm | Refusal


class Ranked(NamedTuple):
    """A form that is taken where a product has it, before those behind it in the table."""

    name: str  # for a reader
    readings: tuple[Reading, ...]  # what it computes; others are refused
    make: Callable[[Product], Found]  # makes it of a product


class Timed(NamedTuple):
    """A form that is taken where it is estimated to be faster than a ranked one."""

    # As of :class:`Ranked`.
    name: str
    readings: tuple[Reading, ...]
    instead_of: tuple[str, ...]  # the ranked forms that it may stand for
    make: Callable[[Product, GemmForm], Found]  # makes it of a product and of what it may stand for


def _dual(product: Product) -> Found:
    tile = dual_gemm_tile(product.as_read, product.device)
    if tile is None:
        return no_dual(product.stages, "have no wgmma tile that pays off")
    return GemmForm(product.as_read, tile, product.device)


def _ragged(product: Product) -> Found:
    tile = ragged_tile(product.as_read, product.device)
    if isinstance(tile, Refusal):
        return tile
    return GemmForm(product.as_read, tile, product.device)


def _grouped(product: Product) -> Found:
    return grouped_form(product.contraction, product.constants, product.device)


def _implicit(product: Product) -> Found:
    few = product.problem.skinny
    if few is not None and few.m < LEAST_ROWS:
        return other_form(f"A skinny GEMM computes {few.m} rows, fewer than {LEAST_ROWS}.")
    return implicit_form(product.contraction, product.constants, product.device)


def _along_k(product: Product) -> Found:
    few = product.problem.skinny
    if few is not None and few.m < LEAST_ROWS:
        return other_form(f"A skinny GEMM computes {few.m} rows, fewer than {LEAST_ROWS}.")
    return weight_along_k_form(product.contraction, product.constants, product.device)


def _as_it_is(product: Product) -> Found:
    if product.norm_scale is not None and product.problem.skinny is None:
        sentence = (
            "A norm prologue is fused into GEMV and skinny GEMM only, which "
            f"{product.contraction.stage.title} is not."
        )
        return Refusal("not_skinny", sentence)
    return GemmForm(product.contraction, default(product.problem), product.device)


def _aligned_rows(product: Product, base: GemmForm) -> Found:
    given = (product.contraction, base.gemm, product.constants, product.device)
    return aligned_rows_form(*given)


def _im2col(product: Product, base: GemmForm) -> Found:
    return im2col_form(product.contraction, base, product.constants, product.device)


def _planes(product: Product, base: GemmForm) -> Found:
    return planes_form(product.contraction, base, product.constants, product.device)


def _packed_weight(product: Product, base: GemmForm) -> Found:
    inputs, constants = product.program.inputs, product.constants
    return packed_weight_form(product.contraction, base, inputs, constants, product.device)


def _by_pixels(product: Product, base: GemmForm) -> Found:
    if product.by_pixels is None:
        return other_form("It is not pooled by a maximum of whole windows.")
    found = implicit_form(product.by_pixels, product.constants, product.device)
    if not isinstance(found, Refusal) or not base.is_gathered:
        return found
    return im2col_form(product.by_pixels, base, product.constants, product.device)


_ALONE = (Reading.PRODUCT, Reading.STATISTICS)
_ONE = (*_ALONE, Reading.PARTS)
_ANY = (*_ONE, Reading.POOLED)
_ANY_IMAGE = ("implicit GEMM", "as it is")

BY_RANK = (
    Ranked("dual GEMM", (Reading.DUAL,), _dual),
    Ranked("ragged rows", _ALONE, _ragged),
    Ranked("grouped convolution", _ONE, _grouped),
    Ranked("implicit GEMM", _ANY, _implicit),
    Ranked("weight along K", _ANY, _along_k),
    Ranked("as it is", (*_ANY, Reading.NORM, Reading.HEADS), _as_it_is),
)
BY_TIME = (
    Timed("aligned rows", _ALONE, ("as it is",), _aligned_rows),
    Timed("partial im2col", _ALONE, _ANY_IMAGE, _im2col),
    Timed("planes", (*_ALONE, Reading.POOLED), ("as it is",), _planes),
    Timed("packed weight", _ALONE, _ANY_IMAGE, _packed_weight),
    Timed("windows of pixels", (Reading.POOLED,), _ANY_IMAGE, _by_pixels),
)


@dataclass(frozen=True, eq=False)
class Choice:
    """The form that was chosen."""

    name: str  # of its row
    form: GemmForm  # what it gave


def choose(product: Product) -> Choice | Refusal:
    """Choose the form of a product."""
    ranked = _first(product)
    if isinstance(ranked, Refusal):
        return ranked
    found = [ranked, *_instead_of(product, ranked)]
    return found[0] if len(found) == 1 else min(found, key=_clocks)  # of equals the first


def weighed(product: Product) -> tuple[Form, ...]:
    """Tell a reader what every row of the table gives, and which of them is chosen."""
    chosen, made = choose(product), dict(_rows(product))
    first = next((n for n, found in made.items() if isinstance(found, GemmForm)), "")
    is_compared = {first, *(row.name for row in BY_TIME)}
    forms = []
    for name, found in made.items():
        if isinstance(found, Refusal):
            forms.append(Form(name, "", None, False, found.sentence))
            continue
        is_chosen = isinstance(chosen, Choice) and name == chosen.name
        why = (
            "Estimated to be slower."
            if name in is_compared
            else f"The form '{first}' takes precedence."
        )
        why = "" if is_chosen else why
        forms.append(Form(name, described(found.gemm), found.clocks, is_chosen, why))
    return tuple(forms)


def _rows(product: Product) -> Iterator[tuple[str, Found]]:
    """Make every row of the table: also those that :func:`choose` need not ask."""
    first: Choice | None = None
    for row in BY_RANK:
        made = _made(row, product)
        if first is None and isinstance(made, GemmForm):
            first = Choice(row.name, made)
        yield row.name, made
    for timed in BY_TIME:
        if product.reading not in timed.readings:
            yield timed.name, _other_reading(product)
        elif first is None or first.name not in timed.instead_of:
            names = " or ".join(f'"{name}"' for name in timed.instead_of)
            yield timed.name, other_form(f"It is compared with {names} only.")
        else:
            yield timed.name, timed.make(product, first.form)


def _first(product: Product) -> Choice | Refusal:
    """Take the first ranked form that a product has."""
    refusal = _other_reading(product)
    for row in BY_RANK:
        found = _made(row, product)
        if isinstance(found, GemmForm):
            return Choice(row.name, found)
        refusal = found
        if refusal.code != OTHER_FORM:
            break
    return refusal


def _made(row: Ranked, product: Product) -> Found:
    return row.make(product) if product.reading in row.readings else _other_reading(product)


def _instead_of(product: Product, ranked: Choice) -> Iterator[Choice]:
    for row in BY_TIME:
        if ranked.name in row.instead_of and product.reading in row.readings:
            form = row.make(product, ranked.form)
            if isinstance(form, GemmForm):
                yield Choice(row.name, form)


def _clocks(choice: Choice) -> float:
    clocks = choice.form.clocks
    return float("inf") if clocks is None else clocks


def _other_reading(product: Product) -> Refusal:
    return other_form(f"The group is read as {product.reading.value}.")
