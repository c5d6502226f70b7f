"""Variable elimination against all assignments tried one by one."""

import itertools

import numpy as np
import pytest

from tvm_fusion.layout import minimize as module
from tvm_fusion.layout.minimize import Table, minimize, total


def brute_force(sizes, tables):
    return min(total(tables, at) for at in itertools.product(*(range(s) for s in sizes)))


def random_tables(random, sizes, count):
    tables = []
    for _ in range(count):
        width = int(random.integers(1, 4))
        variables = tuple(int(v) for v in random.choice(len(sizes), width, replace=False))
        costs = random.integers(0, 50, [sizes[v] for v in variables]).astype(float)
        if costs.size > 1 and random.random() < 0.3:
            costs.flat[int(random.integers(1, costs.size))] = np.inf
        tables.append(Table(variables, costs))
    return tables


@pytest.mark.parametrize("seed", range(20))
def test_random_sums(seed):
    random = np.random.default_rng(seed)
    sizes = [int(s) for s in random.integers(1, 5, 6)]
    tables = random_tables(random, sizes, 9)
    values, is_proved = minimize(sizes, tables)
    assert is_proved
    assert total(tables, values) == brute_force(sizes, tables)


def test_a_chain_with_a_residual_edge_is_not_greedy():
    """Each table alone prefers 0; the edge that spans the chain makes 1 everywhere cheaper."""
    pair = np.array([[0.0, 10.0], [10.0, 1.0]])
    tables = [Table((k, k + 1), pair) for k in range(4)]
    tables.append(Table((0, 4), np.array([[20.0, 20.0], [20.0, 0.0]])))
    assert minimize([2] * 5, tables) == ([1] * 5, True)


def test_equal_choices_are_the_first():
    assert minimize([3, 2], [Table((0, 1), np.zeros((3, 2)))]) == ([0, 0], True)


@pytest.mark.parametrize("seed", range(5))
def test_dense_sums_are_local_minima(seed, monkeypatch):
    """With room for small tables only: no change of one fixed variable and all others helps."""
    monkeypatch.setattr(module, "LARGEST", 8)
    random = np.random.default_rng(seed)
    sizes = [2] * 7
    pairs = itertools.combinations(range(7), 2)
    tables = [Table(p, random.integers(0, 9, (2, 2)).astype(float)) for p in pairs]
    starts = [[0] * 7, [1] * 7]
    values, is_proved = minimize(sizes, tables, starts)
    assert not is_proved
    found = total(tables, values)
    assert found <= min(total(tables, s) for s in starts)
    for v in range(7):
        changed = [x if k != v else 1 - x for k, x in enumerate(values)]
        assert total(tables, changed) >= found
    assert found <= brute_force(sizes, tables) * 1.2


def test_a_change_repeats_the_steps_that_it_reaches(monkeypatch):
    """Of eight dense parts, only that of the changed variable is eliminated anew."""
    monkeypatch.setattr(module, "LARGEST", 8)
    steps = []
    joined = module._Elimination._joined
    monkeypatch.setattr(module._Elimination, "_joined", lambda *a: steps.append(a[1]) or joined(*a))
    random = np.random.default_rng()
    parts, width = 8, 6
    tables = [
        Table((part * width + a, part * width + b), random.integers(0, 9, (2, 2)).astype(float))
        for part in range(parts)
        for a, b in itertools.combinations(range(width), 2)
    ]
    runs = []
    run = module._Elimination.run
    monkeypatch.setattr(module._Elimination, "run", lambda *a: runs.append(a) or run(*a))
    values, is_proved = minimize([2] * parts * width, tables)
    assert not is_proved
    assert len(runs) > parts
    in_each = len(set(steps)) // parts
    assert len(steps) <= len(set(steps)) + (len(runs) - 1) * in_each
    for part in range(parts):  # what a run takes over is what it would compute
        mine = range(part * width, (part + 1) * width)
        one = [
            Table(tuple(v - mine[0] for v in t.variables), t.costs)
            for t in tables
            if t.variables[0] in mine
        ]
        assert minimize([2] * width, one)[0] == [values[v] for v in mine]
