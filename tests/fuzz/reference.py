"""The float64 interpreter, which also tells how far rounding may take each value.

Beside the exact evaluation run perturbed ones (Monte Carlo arithmetic; Parker, "Monte Carlo
Arithmetic", 1997): the result of every node is moved by a random amount of its dtype's rounding.
How far they spread says what error a value may have after all that was computed before it.
Elements that are NaN or infinite have no spread as long as the perturbed ones are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dims import resolve
from .dtypes import FLOATS
from .graph import Graph, Node
from .operators import OPERATORS

REPLICAS = 4  # perturbed evaluations
FAR = 1e9  # a distance that no rounding covers
SLACK = 16  # the largest error accepted, in spreads
# Rounding of one operation, relative; library functions and sums in float32 lose a few bits.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}
COMPOSITE = 8  # operators of at least so much noise have intermediate results of their own
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126}


@dataclass(frozen=True)
class Value:
    """A value at one instantiation: evaluated exactly, and perturbed."""

    exact: np.ndarray
    perturbed: tuple[np.ndarray, ...]

    @property
    def finite(self) -> np.ndarray:
        """The exact value, with zeros for what is NaN or infinite."""
        return finite_part(self.exact)

    @property
    def is_finite(self) -> bool:
        """Tell whether no element is NaN or infinite."""
        return self.exact.dtype.kind != "f" or bool(np.isfinite(self.exact).all())

    @property
    def spread(self) -> np.ndarray:
        """Largest distance of a perturbed evaluation from the exact one, per element."""
        return _spread(self.exact, self.perturbed)

    def tolerance(self, dtype: str) -> np.ndarray:
        """Return the largest acceptable error per element; zero for integers and booleans."""
        if dtype not in FLOATS or self.exact.size == 0:
            return np.zeros(self.exact.shape)
        spread, scale = self.spread, np.abs(self.finite).max()
        floor = 2 * ROUNDING[dtype] * scale + TINY[dtype]
        # Few replicas may agree at an element by chance; its neighbours say how likely that is.
        axis = max((i for i, n in enumerate(spread.shape) if n > 1), default=None)
        around = spread.max(axis, keepdims=True) if axis is not None else spread
        likely = np.maximum(around / 4, spread.max() / 64)
        return SLACK * np.maximum(spread, likely) + floor


def leaf_value(array: np.ndarray) -> Value:
    """Take an input: it is exact."""
    wide = _wide(array)
    return Value(wide, (wide,) * REPLICAS)


def evaluate_node(
    node: Node, inputs: Sequence[Value], dtypes: Sequence[str], symbols: Mapping[str, int]
) -> list[Value]:
    """Evaluate a node whose outputs have the dtypes; ``symbols`` instantiate its attributes."""
    operator = OPERATORS[node.operator]
    attrs = {key: resolve(value, symbols) for key, value in node.attrs.items()}

    def call(arrays: Sequence[np.ndarray], rng: Any = None) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            if operator.perturbed and rng:
                result = operator.perturbed(rng, *arrays, **attrs)
            else:
                result = operator.reference(*arrays, **attrs)
        return [_wide(r) for r in (result if isinstance(result, (list, tuple)) else [result])]

    exact = call([value.exact for value in inputs])
    noise = operator.noise
    if operator.sums:
        # One after the other, n equal terms are n roundings in the same direction: n * 2**-24 of
        # the sum (Higham, "The accuracy of floating point summation", 1993), to be met by SLACK.
        terms = exact[0].size and inputs[0].exact.size / exact[0].size
        noise += terms * 2.0**-24 / ROUNDING["float32"] / SLACK
    rng = np.random.default_rng(node.outputs[0])
    replicas = []
    for replica in range(REPLICAS):
        arguments = [value.perturbed[replica] for value in inputs]
        if operator.noise >= COMPOSITE:
            # A good algorithm is exact for inputs next to these; what cancels inside shows so.
            arguments = [_perturb(argument, "float32", 1, rng) for argument in arguments]
        results = call(arguments, rng)
        if not operator.exact:
            pairs = zip(results, dtypes, strict=True)
            results = [_perturb(r, dtype, noise, rng, operator.absolute) for r, dtype in pairs]
        replicas.append(results)
    return [
        Value(value, tuple(replica[index] for replica in replicas))
        for index, value in enumerate(exact)
    ]


def distance_in_spreads(
    node: Node, inputs: Sequence[Value], symbols: Mapping[str, int]
) -> float | None:
    """Tell how many spreads of its inputs keep a node from the next jump of its result.

    None for a node that is continuous.
    """
    operator = OPERATORS[node.operator]
    if operator.distance is None or all(v.exact.dtype.kind in "iub" for v in inputs):
        return None
    attrs = {key: resolve(value, symbols) for key, value in node.attrs.items()}
    with np.errstate(all="ignore"):
        exact = np.asarray(operator.distance(*(v.exact for v in inputs), **attrs))
        others = [
            np.asarray(operator.distance(*(v.perturbed[r] for v in inputs), **attrs))
            for r in range(REPLICAS)
        ]
    if exact.size == 0:
        return None
    if any(not v.is_finite for v in inputs):
        # No rounding leads from NaN or infinity to the other side of a jump.
        exact, others = _far(exact), [_far(other) for other in others]
    spread = float(_spread(exact, others).max()) + 1e-6
    smallest = float(exact.min())
    return smallest / spread if np.isfinite(smallest) else 0.0


def evaluate(graph: Graph, instantiation: int) -> dict[int, Value]:
    """Evaluate all values of a graph at one of its instantiations."""
    values = {leaf.value: leaf_value(leaf.at(instantiation)) for leaf in graph.leaves}
    for node in graph.nodes:
        dtypes = [graph.types[v][1] for v in node.outputs]
        inputs = [values[v] for v in node.inputs]
        results = evaluate_node(node, inputs, dtypes, graph.envs[instantiation])
        values.update(zip(node.outputs, results, strict=True))
    return values


def _perturb(
    array: np.ndarray, dtype: str, noise: float, rng: Any, absolute: float = 0
) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    rounding = max(ROUNDING[dtype], noise * ROUNDING["float32"])
    least = TINY[dtype] + absolute * ROUNDING["float32"]
    noise = rng.uniform(-1, 1, array.shape) * (rounding * np.abs(finite_part(array)) + least)
    return array + noise


def finite_part(array: np.ndarray) -> np.ndarray:
    """Put zeros in place of NaN and infinities."""
    return np.where(np.isfinite(array), array, 0) if array.dtype.kind == "f" else array


def same_special(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Tell where both arrays are NaN, or infinite with one sign."""
    return (np.isnan(one) & np.isnan(two)) | (np.isinf(one) & (one == two))


def _spread(exact: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    wide = exact.astype("float64")
    with np.errstate(all="ignore"):
        distances = [
            np.where(same_special(wide, other), 0, np.abs(other - wide))
            for other in (np.asarray(o, "float64") for o in others)
        ]
    return np.nan_to_num(np.max(distances, axis=0), nan=np.inf)


def _far(array: np.ndarray) -> np.ndarray:
    return np.nan_to_num(array.astype("float64"), nan=FAR, posinf=FAR, neginf=-FAR)


def _wide(array: Any) -> np.ndarray:
    array = np.asarray(array)
    # numpy calls bfloat16 a type of plain bytes
    kind = {"f": "float64", "V": "float64", "b": "bool"}.get(array.dtype.kind, "int64")
    return array.astype(kind)
