"""Seeded random graphs."""

from functools import partial

import numpy as np

from .builder import Builder
from .dims import Dim, Env, Extent
from .dtypes import FLOATS
from .graph import Graph
from .recipes import RECIPES, WIDE_RECIPES, join
from .reference import leaf_value

SIZES = (1, 3, 5, 7, 8, 16, 17, 127, 129)
LARGEST_SYMBOL = 33
FEWEST, MOST = 5, 40  # nodes
SYMBOLIC_EVERY, HALF_EVERY = 5, 5  # one graph in five of either, one in 25 of both
# Graphs of seeds from here on draw more than the others: half of them each of these.
WIDE_FROM = 1_000_000
DRAWS = ("bfloat16", "integers", "empty", "special")
WIDE_WEIGHT = 0.35  # of recipes that only these graphs have, where they draw integers
SPECIAL = (np.nan, np.inf, -np.inf)


def generate(seed: int) -> Graph:
    """Make the graph of a seed: 5 to 40 nodes, odd sizes, symbolic and half types among them.

    Seeds from ``WIDE_FROM`` on also draw bfloat16, integers and booleans, zero extents, and inputs
    that are NaN or infinite.
    """
    symbolic = seed % SYMBOLIC_EVERY == 1
    dtype = "float16" if seed // SYMBOLIC_EVERY % HALF_EVERY == 1 else "float32"
    draws = drawn(seed)
    if "bfloat16" in draws:
        dtype = "bfloat16"
    for attempt in range(200):
        rng = np.random.default_rng([seed, attempt])
        graph = _generate(seed, rng, symbolic, dtype, draws)
        sized = FEWEST <= len(graph.nodes) <= MOST
        if (
            sized
            and graph.is_symbolic == symbolic
            and graph.has_half >= (dtype != "float32")
            and graph.is_empty_somewhere >= ("empty" in draws)
            and graph.has_special >= ("special" in draws)
            and graph.has_dtype("int64", "bool") >= ("integers" in draws)
        ):
            return graph
    raise RuntimeError(f"no graph of {FEWEST} to {MOST} nodes for seed {seed}")


def drawn(seed: int) -> frozenset[str]:
    """List what the graph of a seed draws besides the usual: one to four of ``DRAWS``, or none."""
    if seed < WIDE_FROM:
        return frozenset()
    bits = seed % (2 ** len(DRAWS) - 1) + 1  # no symbolic graph has always the same ones
    return frozenset(name for n, name in enumerate(DRAWS) if bits >> n & 1)


def _generate(
    seed: int, rng: np.random.Generator, symbolic: bool, dtype: str, draws: frozenset[str]
) -> Graph:
    symbols = ("n", "m")[: int(rng.integers(1, 3))] if symbolic else ()
    builder = Builder(seed, _instantiations(symbols, rng, "empty" in draws), dtype, draws)
    builder.rng = rng
    for _ in range(int(rng.integers(1, 4))):
        shape = _shape(symbols, rng)
        if "empty" in draws and rng.random() < 0.5:
            shape[int(rng.integers(len(shape)))] = 0
        builder.leaf(shape, constant=False)
    if "special" in draws:
        _make_special(builder, rng)
    if "integers" in draws:
        _add_integers(builder, symbols, rng)
    target = int(rng.integers(FEWEST, MOST - 8))
    recipes = dict(RECIPES)
    if "integers" in draws:
        scale = WIDE_WEIGHT * sum(w for _, w in recipes.values())
        scale /= sum(w for _, w in WIDE_RECIPES.values())
        recipes |= {name: (make, w * scale) for name, (make, w) in WIDE_RECIPES.items()}
    names = list(recipes)
    weights = np.array([recipes[name][1] for name in names])
    for _ in range(20 * target):
        if len(builder.nodes) >= target:
            break
        recipe = recipes[names[int(rng.choice(len(names), p=weights / weights.sum()))]][0]
        builder.attempt(recipe)
    outputs = int(rng.integers(1, 8))
    for _ in range(4 * target):
        sinks = _sinks(builder)
        if len(sinks) <= outputs or len(builder.nodes) >= MOST:
            break
        one, two = (int(v) for v in rng.choice(sinks, 2, replace=False))
        builder.attempt(partial(join, one=one, two=two))
    return builder.graph(_outputs(builder))


def _make_special(builder: Builder, rng: np.random.Generator) -> None:
    """Put NaN or infinities into a few places of a float parameter, of one kind or of several."""
    floats = [leaf for leaf in builder.leaves if leaf.dtype in FLOATS]
    for leaf in floats[: int(rng.integers(1, 1 + len(floats)))]:
        kinds = rng.permutation(SPECIAL)[: int(rng.integers(1, 3))]
        for array in leaf.data:
            places = rng.random(array.shape) < rng.choice([0.01, 0.05, 0.2])
            if array.size and not places.any():
                places.flat[int(rng.integers(array.size))] = True
            array[places] = rng.choice(kinds, array.shape)[places]
        at = range(len(builder.envs))
        builder.values[leaf.value] = [leaf_value(leaf.at(i)) for i in at]


def _add_integers(builder: Builder, symbols: tuple[str, ...], rng: np.random.Generator) -> None:
    """Add parameters of integers, some beyond 32 bits, and of booleans."""
    for _ in range(int(rng.integers(1, 4))):
        dtype = str(rng.choice(["int64", "int64", "int32", "bool"]))
        bound = int(rng.choice([5, 100, 2**24 + 1, 2**40 if dtype == "int64" else 2**28]))
        shape = builder.shape(int(rng.choice(list(builder.values))))
        shape = shape if rng.random() < 0.6 else _shape(symbols, rng)
        builder.leaf(shape, dtype, low=-bound, high=bound, constant=False)


def _instantiations(
    symbols: tuple[str, ...], rng: np.random.Generator, empty: bool = False
) -> tuple[Env, ...]:
    """Choose three values of each symbol, all different, so that shapes have one formula."""
    if not symbols:
        return ({},)
    chosen = rng.choice(
        [1, 2, 3, 4, 5, 6, 7, 9, 17, LARGEST_SYMBOL], (3 * len(symbols)), replace=False
    )
    if empty:
        chosen[2] = 0
    columns = chosen.reshape(len(symbols), 3).tolist()
    return tuple(
        dict(zip(symbols, (int(v) for v in values), strict=True))
        for values in zip(*columns, strict=True)
    )


def _shape(symbols: tuple[str, ...], rng: np.random.Generator) -> list[Extent]:
    rank = int(rng.choice([1, 2, 3, 4], p=[0.1, 0.35, 0.25, 0.3]))
    symbolic = {
        int(axis): name
        for name, axis in zip(symbols, rng.permutation(rank), strict=False)
        if rng.random() < 0.8
    }
    while True:
        sizes = rng.choice(SIZES, rank)
        for axis in symbolic:
            sizes[axis] = LARGEST_SYMBOL
        if np.prod(sizes) <= 4000:
            return [
                Dim(1, (symbolic[axis],)) if axis in symbolic else int(size)
                for axis, size in enumerate(sizes)
            ]


def _sinks(builder: Builder) -> list[int]:
    made = [v for node in builder.nodes for v in node.outputs]
    return [v for v in made if not builder.uses.get(v)]


def _outputs(builder: Builder) -> list[int]:
    """Choose up to eight results that nothing uses, and now and then some that are used inside."""
    rng, sinks = builder.rng, _sinks(builder)
    chosen = [int(v) for v in rng.permutation(sinks)[:8]]
    inner = [v for node in builder.nodes for v in node.outputs if builder.uses.get(v)]
    if inner and rng.random() < 0.5:
        chosen += [int(v) for v in rng.permutation(inner)[: int(rng.integers(1, 4))]]
    return list(dict.fromkeys(chosen))
