"""A graph under construction, evaluated as it grows, so that no value leaves its sane range."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from .dims import Dim, Env, Extent, fit_shape, resolve
from .dtypes import FLOATS
from .graph import Graph, Leaf, Node
from .reference import SLACK, Value, distance_in_spreads, evaluate_node, finite_part, leaf_value

LARGEST = {"float16": 2e3, "bfloat16": 1e5, "float32": 1e5}  # of any value
TAME = 16.0  # of the values that a recipe hands on
SPREAD = {"float16": 8e-3, "bfloat16": 6e-2, "float32": 1e-4}  # of a value, in its largest element
ELEMENTS = 20_000
INTEGER = 4096
# Orders with NaN in them, and products with the zeros between pixels, are nobody's promise.
FINITE_ONLY = ("sort", "argsort", "topk", "median", "image.resize2d", "nn.conv2d_transpose")
LARGE_INTEGER = {"int32": 2**30, "int64": 2**52}  # what integers may reach in wide graphs


class Rejected(Exception):
    """This step leads to a graph whose result is not defined well enough to be checked."""


class Builder:
    """Leaves and nodes so far, with their values at every instantiation."""

    def __init__(self, seed: int, envs: tuple[Env, ...], dtype: str, draws: Collection[str] = ()):
        self.draws = frozenset(draws)  # of generate.DRAWS
        self.rng = np.random.default_rng(seed)
        self.seed, self.envs, self.dtype = seed, envs, dtype
        self.leaves: list[Leaf] = []
        self.nodes: list[Node] = []
        self.values: dict[int, list[Value]] = {}
        self.types: dict[int, tuple[tuple[Extent, ...], str]] = {}
        self.uses: dict[int, int] = {}

    def shape(self, value: int) -> tuple[Extent, ...]:
        """Return the shape of a value."""
        return self.types[value][0]

    def dtype_of(self, value: int) -> str:
        """Return the dtype of a value."""
        return self.types[value][1]

    def is_float(self, value: int) -> bool:
        """Tell floating-point values from integers and booleans."""
        return self.dtype_of(value) in FLOATS

    def chance(self, probability: float) -> bool:
        """Throw a dice."""
        return bool(self.rng.random() < probability)

    def one_of(self, items: Sequence[Any]) -> Any:
        """Choose one; an empty choice rejects the step."""
        if not len(items):
            raise Rejected("nothing to choose from")
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low: int, high: int) -> int:
        """Choose an integer in [low, high); an empty range rejects the step."""
        if high <= low:
            raise Rejected("nothing to choose from")
        return int(self.rng.integers(low, high))

    def pick(self, accept: Callable[[int], bool]) -> int:
        """Choose a value that fits, late ones and those of one consumer more often than others."""
        fitting = [v for v in self.values if accept(v) and not self._is_scalar_constant(v)]
        wanted = int(self.rng.choice(3, p=[0.25, 0.55, 0.2]))
        pool = [v for v in fitting if self.uses.get(v, 0) == wanted] or fitting
        if not pool:
            raise Rejected("no value fits")
        weights = np.linspace(1, 4, len(pool))
        return int(self.rng.choice(pool, p=weights / weights.sum()))

    def pick_float(self, accept: Callable[[tuple[Extent, ...]], bool] = lambda shape: True) -> int:
        """Choose a floating-point value by its shape."""
        return self.pick(lambda v: self.is_float(v) and accept(self.shape(v)))

    def leaf(
        self,
        shape: Sequence[Extent],
        dtype: str | None = None,
        *,
        low: float = -2.0,
        high: float = 2.0,
        constant: bool | None = None,
        data: np.ndarray | None = None,
    ) -> int:
        """Add a parameter or a constant of random numbers; integers lie in [low, high)."""
        dtype = dtype or self.dtype
        shape = tuple(shape)
        static = not any(isinstance(extent, Dim) for extent in shape)
        constant = static and self.chance(0.4) if constant is None else constant
        arrays = []
        for env in self.envs[: 1 if constant else None]:
            extents = resolve(shape, env)
            if int(np.prod(extents)) > ELEMENTS:
                raise Rejected("too large")
            arrays.append(self._random(extents, dtype, low, high) if data is None else data)
        value = len(self.types)
        leaf = Leaf(value, shape, dtype, tuple(arrays), constant)
        self.leaves.append(leaf)
        self.types[value] = (shape, dtype)
        self.values[value] = [leaf_value(leaf.at(i)) for i in range(len(self.envs))]
        return value

    def scalar(self, number: float, dtype: str | None = None) -> int:
        """Add a constant without axes."""
        dtype = dtype or self.dtype
        return self.leaf((), dtype, constant=True, data=np.array(number, dtype))

    def emit(self, operator: str, *inputs: int, gives: str | None = None, **attrs: Any) -> int:
        """Add a node with one result."""
        return self.emit_all(operator, *inputs, gives=[gives], **attrs)[0]

    def emit_all(
        self, operator: str, *inputs: int, gives: Sequence[str | None], **attrs: Any
    ) -> list[int]:
        """Add a node; a dtype of None follows from the reference's kind and the inputs."""
        if operator in FINITE_ONLY and not all(x.is_finite for v in inputs for x in self.values[v]):
            raise Rejected(f"{operator} of what is not finite is nobody's promise")
        if operator in ("add", "subtract", "divide") and self._may_cancel(*inputs):
            raise Rejected("NaN or infinity that simplifiers may cancel")
        if operator == "reshape" and self._copies_extent(inputs[0], attrs["shape"]):
            raise Rejected("Relax reads 0 as the operand's extent at that place")
        draft = Node(operator, inputs, (len(self.types),), attrs)
        results: list[list[Value]] = []
        for index, env in enumerate(self.envs):
            arguments = [self.values[v][index] for v in inputs]
            gap = distance_in_spreads(draft, arguments, env)
            if gap is not None and gap < 2 * SLACK:
                raise Rejected(f"{operator} close to a jump")
            results.append(self._evaluate(draft, arguments, gives, env))
        new = list(range(len(self.types), len(self.types) + len(gives)))
        for position, value in enumerate(new):
            at = [result[position] for result in results]
            shape = fit_shape([v.exact.shape for v in at], self.envs)
            if shape is None:
                raise Rejected("a shape without a formula")
            dtype = gives[position] or self._dtype(inputs, at[0].exact)
            self._require_sane(at, dtype)
            self.types[value], self.values[value] = (shape, dtype), at
        self.nodes.append(Node(operator, inputs, tuple(new), attrs))
        for v in set(inputs):
            self.uses[v] = self.uses.get(v, 0) + 1
        return new

    def tame(self, value: int) -> int:
        """Scale a value back by a power of two where it has become large."""
        if not self.is_float(value):
            return value
        largest = max(float(np.abs(v.finite).max(initial=0)) for v in self.values[value])
        if largest <= TAME:
            return value
        factor = 2.0 ** -np.ceil(np.log2(largest / 4))
        return self.emit("multiply", value, self.scalar(factor, self.dtype_of(value)))

    def attempt(self, recipe: Callable[[Builder], None]) -> bool:
        """Run a recipe; a rejected one leaves nothing behind."""
        counts = len(self.leaves), len(self.nodes), len(self.types)
        uses = dict(self.uses)
        try:
            recipe(self)
        except (Rejected, ValueError):  # numpy refuses to draw from nothing
            del self.leaves[counts[0] :], self.nodes[counts[1] :]
            for value in range(counts[2], len(self.types)):
                del self.types[value]
                self.values.pop(value, None)
            self.uses = uses
            return False
        return True

    def graph(self, outputs: Sequence[int]) -> Graph:
        """Return the graph that computes the outputs, and nothing else."""
        graph = Graph(
            self.seed,
            tuple(self.leaves),
            tuple(self.nodes),
            tuple(outputs),
            dict(self.types),
            self.envs,
        )
        return graph.pruned()

    def _evaluate(
        self, draft: Node, inputs: list[Value], gives: Sequence[str | None], env: Env
    ) -> list[Value]:
        known = [dtype or self._dtype(draft.inputs, None) for dtype in gives]  # for rounding
        try:
            return evaluate_node(draft, inputs, known, env)
        except (ValueError, IndexError) as error:  # numpy refuses shapes or axes
            raise Rejected(str(error)) from error

    def _dtype(self, inputs: Sequence[int], result: np.ndarray | None) -> str:
        if result is not None and result.dtype.kind == "b":
            return "bool"
        floating = result is None or result.dtype.kind == "f"
        for v in inputs:
            if self.is_float(v) == floating and self.dtype_of(v) != "bool":
                return self.dtype_of(v)
        return self.dtype if floating else "int64"

    def _copies_extent(self, value: int, shape: Sequence[Extent]) -> bool:
        before = self.shape(value)
        return any(n == 0 and (i >= len(before) or before[i] != 0) for i, n in enumerate(shape))

    def special_sources(self, value: int) -> frozenset[int]:
        """List the leaves with NaN or infinities that a value comes from."""
        if all(v.is_finite for v in self.values[value]):
            return frozenset()
        node = self._producer(value)
        if node is None:
            return frozenset([value])
        return frozenset().union(*(self.special_sources(v) for v in node.inputs))

    def _may_cancel(self, one: int, two: int) -> bool:
        """Tell whether both operands hold the same NaN or infinities.

        ``x - x`` is NaN then, and 0 for all numbers: TVM's simplifier writes 0, as it may where
        the original is not finite. A sum or a maximum of several elements is no such operand.
        """
        if not self.special_sources(one) & self.special_sources(two):
            return False
        for value in (one, two):
            node = self._producer(value)
            if node is not None and node.operator in ("max", "mean", "sum"):
                before = self.values[node.inputs[0]][0].exact.size
                if before > self.values[value][0].exact.size:
                    return False
        return True

    def _producer(self, value: int) -> Node | None:
        return next((node for node in self.nodes if value in node.outputs), None)

    def _require_sane(self, at: list[Value], dtype: str) -> None:
        for value in at:
            exact = value.exact
            if exact.size > ELEMENTS or (exact.size == 0 and "empty" not in self.draws):
                raise Rejected("empty or too large")
            largest = np.abs(exact.astype("float64")).max(initial=0)
            if dtype in FLOATS:
                if "special" in self.draws:
                    largest = np.abs(finite_part(exact)).max(initial=0)
                    if np.mean(~np.isfinite(exact)) > 0.7:
                        raise Rejected("hardly a number left")
                elif exact.size == 0:
                    continue
                if not largest <= LARGEST[dtype]:
                    raise Rejected("out of range or not a number")
                if not value.spread.max(initial=0) <= SPREAD[dtype] * max(largest, 1e-3):
                    raise Rejected("badly conditioned")
            elif largest > self._largest_integer(dtype):
                raise Rejected("integers too large")

    def _largest_integer(self, dtype: str) -> int:
        return LARGE_INTEGER.get(dtype, INTEGER) if "integers" in self.draws else INTEGER

    def _random(self, shape: Sequence[int], dtype: str, low: float, high: float) -> np.ndarray:
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype not in FLOATS:
            return self.rng.integers(int(low), int(high), shape).astype(dtype)
        return self.rng.uniform(low, high, shape).astype(dtype)

    def _is_scalar_constant(self, value: int) -> bool:
        return not self.shape(value) and any(
            leaf.value == value and leaf.constant for leaf in self.leaves
        )
