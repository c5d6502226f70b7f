"""Seeded random graphs."""

from __future__ import annotations

from functools import partial

import numpy as np

from .builder import Builder
from .dims import Dim, Env, Extent
from .graph import Graph
from .recipes import RECIPES, join

SIZES = (1, 3, 5, 7, 8, 16, 17, 127, 129)
LARGEST_SYMBOL = 33
FEWEST, MOST = 5, 40  # nodes
SYMBOLIC_EVERY, HALF_EVERY = 5, 5  # one graph in five of either, one in 25 of both


def generate(seed: int) -> Graph:
    """Make the graph of a seed: 5 to 40 nodes, odd sizes, symbolic and half types among them."""
    symbolic = seed % SYMBOLIC_EVERY == 1
    dtype = "float16" if seed // SYMBOLIC_EVERY % HALF_EVERY == 1 else "float32"
    for attempt in range(200):
        graph = _generate(seed, np.random.default_rng([seed, attempt]), symbolic, dtype)
        sized = FEWEST <= len(graph.nodes) <= MOST
        if sized and graph.is_symbolic == symbolic and graph.has_half >= (dtype == "float16"):
            return graph
    raise RuntimeError(f"no graph of {FEWEST} to {MOST} nodes for seed {seed}")


def _generate(seed: int, rng: np.random.Generator, symbolic: bool, dtype: str) -> Graph:
    symbols = ("n", "m")[: int(rng.integers(1, 3))] if symbolic else ()
    builder = Builder(seed, _instantiations(symbols, rng), dtype)
    builder.rng = rng
    for _ in range(int(rng.integers(1, 4))):
        builder.leaf(_shape(symbols, rng), constant=False)
    target = int(rng.integers(FEWEST, MOST - 8))
    names = list(RECIPES)
    weights = np.array([RECIPES[name][1] for name in names])
    for _ in range(20 * target):
        if len(builder.nodes) >= target:
            break
        recipe = RECIPES[names[int(rng.choice(len(names), p=weights / weights.sum()))]][0]
        builder.attempt(recipe)
    outputs = int(rng.integers(1, 8))
    for _ in range(4 * target):
        sinks = _sinks(builder)
        if len(sinks) <= outputs or len(builder.nodes) >= MOST:
            break
        one, two = (int(v) for v in rng.choice(sinks, 2, replace=False))
        builder.attempt(partial(join, one=one, two=two))
    return builder.graph(_outputs(builder))


def _instantiations(symbols: tuple[str, ...], rng: np.random.Generator) -> tuple[Env, ...]:
    """Choose three values of each symbol, all different, so that shapes have one formula."""
    if not symbols:
        return ({},)
    chosen = rng.choice(
        [1, 2, 3, 4, 5, 6, 7, 9, 17, LARGEST_SYMBOL], (3 * len(symbols)), replace=False
    )
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
