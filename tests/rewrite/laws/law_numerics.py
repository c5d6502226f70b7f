"""Both sides of a law in numbers: operator by operator, against the original in float64.

A law without a flag promises: where the original is finite and none of its intermediate results
overflows, the new form, computed in the dtype, is within tolerance of the original's exact value.
The tolerance is what rounding the original's operands and results once each could change, times
:data:`FACTOR`: so cancellation counts against the size of the original's intermediate results.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from law_cases import parse
from law_convolutions import convolve
from tvm import relax

from tvm_fusion.frontend.normalize.evaluate import evaluate, numpy_dtype
from tvm_fusion.rewrite.head import Head, Heads
from tvm_fusion.rewrite.terms import Term, subterms

FACTOR = 8
TRIALS = 6
_FIXED = ("relax.astype", "relax.full", "relax.zeros", "relax.ones")  # write their own dtype
_BUILDER = relax.BlockBuilder()


def compare(
    left: Term, right: Term, heads: Heads, leaves: Mapping[Head, np.ndarray], seed: int
) -> int:
    """Compare two forms on given inputs; returns how many elements could be compared."""
    rng = np.random.default_rng(seed)
    narrow = _run(left, heads, leaves)
    old, new = narrow[left], _run(right, heads, leaves)[right]
    assert old.dtype == new.dtype
    assert old.shape == new.shape
    valid = _valid(narrow.values(), old.shape)
    if old.dtype.kind not in "fV":
        np.testing.assert_array_equal(new[valid], old[valid])
        return int(valid.sum())
    exact = _run(left, heads, leaves, wide=True)[left]
    epsilon = _epsilon(old.dtype)
    spread = np.zeros(exact.shape)
    for _ in range(TRIALS):
        moved = _run(left, heads, leaves, wide=True, rounding=(rng, epsilon))[left]
        with np.errstate(all="ignore"):
            spread = np.fmax(spread, np.abs(moved - exact))
    valid &= np.isfinite(exact)
    tiny = float(np.finfo(np.float32).tiny if old.dtype.kind == "V" else np.finfo(old.dtype).tiny)
    tolerance = FACTOR * (spread + epsilon * np.abs(exact)) + 2 * tiny
    with np.errstate(all="ignore"):
        error = np.abs(new.astype(np.float64) - exact)
    wrong = valid & ~(error <= tolerance)
    if wrong.any():
        at = np.argwhere(wrong)[0]
        i = tuple(int(k) for k in at)
        raise AssertionError(
            f"{left} is {exact[i]:g}, {right} is {new[i]:g} at {i}; allowed is {tolerance[i]:g};"
            f" {int(wrong.sum())} of {int(valid.sum())} are wrong"
        )
    return int(valid.sum())


def inputs(
    specs: Mapping[Head, str], heads: Heads, dtype: str, shape_n: int, is_large: bool, seed: int
) -> dict[Head, np.ndarray]:
    """Draw what leaves are: ordinary numbers, or magnitudes from denormal to nearly too large."""
    rng = np.random.default_rng(seed)
    drawn = {head: const.value.numpy() for head, const in heads.values.items()}
    for head, spec in specs.items():
        extents, own, rest = parse(spec, dtype)
        shape = [shape_n if e == "n" else int(e) for e in extents]
        span = next((w.split("..") for w in rest if ".." in w), None)
        drawn[head] = _draw(rng, shape, own, span, is_large)
    return drawn


def _draw(
    rng: np.random.Generator, shape: list[int], dtype: str, span: list[str] | None, is_large: bool
) -> np.ndarray:
    kind = numpy_dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        info = np.iinfo(kind)
        low, high = (info.min, info.max) if span is None else map(int, span)
        if span is None and not is_large:
            low, high = max(low, -100), min(high, 100)
        return rng.integers(low, high, shape, dtype=kind, endpoint=True)
    if span is not None:
        return rng.uniform(float(span[0]), float(span[1]), shape).astype(kind)
    if is_large:
        info = np.finfo(np.float32 if kind.kind == "V" else kind)
        bounds = np.log2(float(info.tiny)) - 8, np.log2(float(info.max))
        values = np.exp2(rng.uniform(*bounds, shape)) * rng.choice([-1.0, 1.0], shape)
        special = [0.0, -0.0, 1.0, -1.0, float(info.tiny), float(info.max), -float(info.max)]
    else:
        values = rng.normal(0.0, 2.0, shape)
        special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e-3, 12.0]
    is_special = rng.random(shape) < 0.15
    return np.where(is_special, rng.choice(special, shape), values).astype(kind)


def _run(
    term: Term,
    heads: Heads,
    leaves: Mapping[Head, np.ndarray],
    wide: bool = False,
    rounding: tuple[np.random.Generator, float] | None = None,
) -> dict[Term, np.ndarray]:
    """Compute all subterms; ``wide`` in float64, ``rounding`` with random relative errors."""
    done: dict[Term, np.ndarray] = {}
    by_leaf: dict[Head, np.ndarray] = {}
    for part in subterms([term]):
        if part.head.call is None:
            if part.head not in by_leaf:
                value = leaves[part.head] if part.head in leaves else _constant(part, heads)
                by_leaf[part.head] = _changed(value, wide, rounding)
            done[part] = by_leaf[part.head]
            continue
        given = [done[o] for o in part.operands]
        if part.head.name in _FIXED:  # in the dtypes of the form itself
            own = [numpy_dtype(str(o.type.dtype)) for o in part.operands]
            with np.errstate(all="ignore"):
                given = [g.astype(dtype) for g, dtype in zip(given, own, strict=True)]
        call = part.head.apply([relax.const(g, _name(g)) for g in given])
        with np.errstate(all="ignore"):
            call = _BUILDER.normalize(call)
            result = convolve(call) if ".conv" in part.head.name else evaluate(call)
        assert result is not None, f"evaluate.py does not know {part.head.name}"
        done[part] = _changed(result, wide, rounding)
    return done


def _constant(leaf: Term, heads: Heads) -> np.ndarray:
    return heads.values[leaf.head].value.numpy()


def _changed(
    value: np.ndarray, wide: bool, rounding: tuple[np.random.Generator, float] | None
) -> np.ndarray:
    if not wide or value.dtype.kind not in "fV":
        return value
    value = value.astype(np.float64)
    if rounding is None:
        return value
    rng, epsilon = rounding
    return value * (1 + epsilon * rng.uniform(-1, 1, value.shape))


def _valid(intermediates: object, shape: tuple[int, ...]) -> np.ndarray:
    """Where all values that an element is computed from are finite."""
    valid = np.ones(shape, dtype=bool)
    for value in intermediates:  # type: ignore[attr-defined]
        if value.dtype.kind not in "fV":
            continue
        finite = np.isfinite(value.astype(np.float64))
        try:
            valid &= np.broadcast_to(finite, shape)
        except ValueError:  # of another shape: any of its elements may count
            valid &= finite.all()
    return valid


def _epsilon(dtype: np.dtype) -> float:
    return 2.0**-8 if dtype.kind == "V" else float(np.finfo(dtype).eps) / 2


def _name(array: np.ndarray) -> str:
    return str(array.dtype)
