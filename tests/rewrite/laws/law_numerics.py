"""Both sides of a law in numbers: operator by operator, against the original in float64.

A law without a flag promises: where the original is finite and none of its intermediate results
overflows, the new form, computed in the dtype, is within tolerance of the original's exact value.
The tolerance is what rounding the original's operands and results once each could change, times
:data:`FACTOR`: so cancellation counts against the size of the original's intermediate results.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, tirx

from tests.rewrite.laws.law_cases import parse
from tests.rewrite.laws.law_convolutions import convolve
from tvm_fusion.core.constants.evaluate import evaluate_exactly
from tvm_fusion.core.constants.numpy_types import numpy_dtype
from tvm_fusion.rewrite.egraph.head import Head, Heads, is_tensor
from tvm_fusion.rewrite.egraph.terms import Term, subterms

FACTOR = 8
TRIALS = 6
_ROUNDING = ("relax.astype",)  # whose very purpose is another dtype


class Program:
    """A form that can be computed.

    Parameters
    ----------
    term
        The form.
    heads
        Of it.
    """

    def __init__(self, term: Term, heads: Heads) -> None:
        self._heads = heads
        parts = tuple(subterms([term]))
        places = {id(part): place for place, part in enumerate(parts)}
        builder = relax.BlockBuilder()
        self._steps = [
            _Step(part, tuple(places[id(o)] for o in part.operands), builder) for part in parts
        ]

    def run(
        self,
        leaves: Mapping[Head, np.ndarray],
        is_wide: bool = False,
        rounding: tuple[np.random.Generator, float] | None = None,
    ) -> list[np.ndarray]:
        """Compute all subterms; ``is_wide`` in float64, ``rounding`` with random errors."""
        done: list[np.ndarray] = []
        for step in self._steps:
            if step.call is None:
                result = self._leaf(step.head, leaves)
            else:
                result = step.compute([done[place] for place in step.operands])
            if not is_wide or step.is_rounding:
                with np.errstate(all="ignore"):
                    result = result.astype(step.dtype, copy=False)
            if is_wide and result.dtype.kind in "fV":
                result = result.astype(np.float64)
                if rounding is not None:
                    rng, epsilon = rounding
                    result = np.asarray(result * (1 + epsilon * rng.uniform(-1, 1, result.shape)))
            done.append(result)
        return done

    def run_with_overflow(
        self, leaves: Mapping[Head, np.ndarray], rng: np.random.Generator | None = None
    ) -> list[np.ndarray]:
        """Compute all subterms in float64; what is too large for its dtype is infinite.

        With a generator, each is rounded at random, and is off by the smallest number where its
        dtype has fewer digits.
        """
        done: list[np.ndarray] = []
        for step in self._steps:
            if step.call is None:
                result = self._leaf(step.head, leaves)
            else:
                result = step.compute([done[place] for place in step.operands])
            if step.dtype.kind not in "fV":
                with np.errstate(all="ignore"):
                    result = result.astype(step.dtype, copy=False)
            else:
                result = _overflowing(result.astype(np.float64), ml_dtypes.finfo(step.dtype), rng)
            done.append(result)
        return done

    def _leaf(self, head: Head, leaves: Mapping[Head, np.ndarray]) -> np.ndarray:
        return leaves[head] if head in leaves else self._heads.values[head].value.numpy()


def _overflowing(x: np.ndarray, info: Any, rng: np.random.Generator | None) -> np.ndarray:
    epsilon = float(info.eps) / 2
    with np.errstate(all="ignore"):
        if rng is not None:
            x = x * (1 + epsilon * rng.uniform(-1, 1, x.shape))
            noise = float(info.smallest_subnormal) * rng.uniform(-1, 1, x.shape)
            x = np.where((np.abs(x) < float(info.tiny)) & (x != 0), x + noise, x)
        return np.where(np.abs(x) > float(info.max) * (1 + epsilon), np.copysign(np.inf, x), x)


class _Step:
    """A subterm, with what each of many runs asks for."""

    def __init__(self, part: Term, operands: tuple[int, ...], builder: relax.BlockBuilder) -> None:
        self.head, self.operands = part.head, operands
        self.dtype = numpy_dtype(str(part.type.dtype))
        self.call = None
        self.is_rounding = False
        if part.head.call is not None:
            given = [relax.Var("x", o.type) for o in part.operands]
            self.call = builder.normalize(part.head.apply(given))
            self.is_rounding = part.head.name in _ROUNDING
            self._arguments = [_argument(arg) for arg in self.call.args]
            self._operator = convolve if ".conv" in part.head.name else evaluate_exactly
            if part.head.name in _OF_INTEGERS and self.dtype.kind in "iu":
                self._operator = _divide

    def compute(self, tensors: list[np.ndarray]) -> np.ndarray:
        given = iter(tensors)
        found = self._operator(self.call, [_filled(arg, given) for arg in self._arguments])
        assert found is not None, f"evaluate.py does not know {self.head.name}"
        return found


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide towards zero; 0 by 0, as numpy's floored division."""
    quotient = np.floor_divide(a, b)
    rest = a - quotient * b
    return np.where((b != 0) & (rest != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient)


# What constants of integers are not folded of.
_OF_INTEGERS: dict[str, Callable[..., np.ndarray]] = {
    "relax.divide": _quotient,
    "relax.floor_divide": np.floor_divide,
    "relax.floor_mod": np.mod,
    "relax.mod": np.fmod,
}


def _divide(call: Any, operands: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(_OF_INTEGERS[call.op.name](*operands))


_TENSOR = object()  # stands where a call has a tensor


def _argument(arg: Any) -> Any:
    if is_tensor(arg):
        return _TENSOR
    if isinstance(arg, relax.Tuple):
        return [_argument(part) for part in arg.fields]
    if isinstance(arg, relax.ShapeExpr):
        return [int(v) for v in arg.values]
    return arg.value if isinstance(arg, tirx.IntImm | tirx.FloatImm) else None


def _filled(argument: Any, tensors: Iterator[np.ndarray]) -> Any:
    """Put arrays where a call has tensors."""
    if isinstance(argument, list):
        return [_filled(part, tensors) for part in argument]
    return next(tensors) if argument is _TENSOR else argument


def compare(left: Program, right: Program, leaves: Mapping[Head, np.ndarray], seed: int) -> int:
    """Compare two forms on given inputs; returns how many elements could be compared."""
    rng = np.random.default_rng(seed)
    narrow = left.run(leaves)
    old, new = narrow[-1], right.run(leaves)[-1]
    assert old.dtype == new.dtype
    assert old.shape == new.shape
    valid = _valid(narrow, old.shape)
    if old.dtype.kind not in "fV":
        np.testing.assert_array_equal(new[valid], old[valid])
        return int(valid.sum())
    exact = left.run(leaves, is_wide=True)[-1]
    epsilon = float(ml_dtypes.finfo(old.dtype).eps) / 2
    spread = np.zeros(exact.shape)
    for _ in range(TRIALS):
        moved = left.run(leaves, is_wide=True, rounding=(rng, epsilon))[-1]
        with np.errstate(all="ignore"):
            spread = np.fmax(spread, np.abs(moved - exact))
    valid &= np.isfinite(exact)
    tiny = float(ml_dtypes.finfo(old.dtype).tiny)
    with np.errstate(all="ignore"):
        tolerance = FACTOR * (spread + epsilon * np.abs(exact)) + 2 * tiny
        error = np.abs(new.astype(np.float64) - exact)
        wrong = valid & ~(error <= tolerance)
    if wrong.any():
        i = tuple(int(k) for k in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{exact[i]:g} became {new[i]:g} at {i}; allowed is {tolerance[i]:g};"
            f" {int(wrong.sum())} of {int(valid.sum())} are wrong"
        )
    return int(valid.sum())


def compare_nan(
    left: Program, right: Program, leaves: Mapping[Head, np.ndarray], constants: Collection[Head]
) -> None:
    """Compare two forms once some inputs are NaN: NaN is not lost, and what is finite stays so.

    Where the original is finite without them: other laws hold for positive numbers only.
    """
    rng = np.random.default_rng(len(leaves))
    before = left.run(leaves)
    valid = _valid(before, before[-1].shape)
    holes = {
        head: np.where(rng.random(x.shape) < 0.2, np.nan, x).astype(x.dtype)
        if x.dtype.kind in "fV" and head not in constants
        else x
        for head, x in leaves.items()
    }
    old, new = (program.run(holes)[-1].astype(np.float64) for program in (left, right))
    lost = np.isnan(old) & np.isfinite(new) & valid
    made = np.isfinite(old) & ~np.isfinite(new) & valid
    assert not lost.any(), f"NaN became {new[lost][0]:g}"
    assert not made.any(), f"{old[made][0]:g} became {new[made][0]:g}"


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


def mixed(
    drawn: Mapping[Head, np.ndarray],
    specs: Mapping[Head, str],
    dtype: str,
    specials: Mapping[str, Callable[[np.dtype], np.ndarray]],
    share: float,
    seed: int,
) -> dict[Head, np.ndarray]:
    """Put special numbers among drawn ones, by the kind of dtype; not into those of a range."""
    rng, found = np.random.default_rng(seed), dict(drawn)
    for head, spec in specs.items():
        _, own, rest = parse(spec, dtype)
        kind = numpy_dtype(own)
        if kind.kind not in specials or any(".." in word for word in rest):
            continue
        chosen = rng.choice(specials[kind.kind](kind), drawn[head].shape)
        is_special = rng.random(chosen.shape) < share
        found[head] = np.where(is_special, chosen, drawn[head].astype(chosen.dtype)).astype(kind)
    return found


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
        info = ml_dtypes.finfo(kind)
        bounds = np.log2(float(info.tiny)) - 8, np.log2(float(info.max))
        values = np.exp2(rng.uniform(*bounds, shape)) * rng.choice([-1.0, 1.0], shape)
        special = [0.0, -0.0, 1.0, -1.0, float(info.tiny), float(info.max), -float(info.max)]
    else:
        values = rng.normal(0.0, 2.0, shape)
        special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e-3, 12.0]
    is_special = rng.random(shape) < 0.15
    return np.where(is_special, rng.choice(special, shape), values).astype(kind)


def _valid(intermediates: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Where all values that an element is computed from are finite."""
    valid = np.ones(shape, dtype=bool)
    for value in intermediates:
        if value.dtype.kind not in "fV":
            continue
        finite = np.isfinite(value.astype(np.float64))
        try:
            valid &= np.broadcast_to(finite, shape)
        except ValueError:  # of another shape: any of its elements may count
            valid &= finite.all()
    return valid
