"""What groups cost under layouts: claims, guesses, and the table over states of their images."""

import itertools
from types import SimpleNamespace

import numpy as np
from tvm import relax

from tvm_fusion.ecg.graph import Value
from tvm_fusion.layout.costs import GroupCosts
from tvm_fusion.layout.states import best, best_costs
from tvm_fusion.program.layouts import Layout

BLOCKED = Layout(16)
FIXED = [(None,), (None, BLOCKED)]
INNER = [*FIXED, (BLOCKED,), (BLOCKED, None)]


class Given(GroupCosts):
    """Costs that need no templates: of each assignment of layouts its own number."""

    def __init__(self, images, us):
        super().__init__(None, dict.fromkeys(images, BLOCKED), SimpleNamespace(us=float))
        self._us = us

    def _asked(self, assignment):
        return self._us[assignment]


def images(count):
    return [Value(f"x{k}", relax.TensorType([1, 32, 4, 4], "float32")) for k in range(count)]


def given(count, rng=None):
    rng = rng or np.random.default_rng()
    values = images(count)
    assignments = itertools.product((None, BLOCKED), repeat=count)
    return Given(values, {one: rng.uniform(1, 9) for one in assignments})


def test_the_first_question_is_answered_by_the_claim():
    for pick in ("plain", "all"):
        costs = given(3)
        assignment = getattr(costs, pick)
        assert costs.cost(assignment) == costs._us[assignment]


def test_mixed_assignments_are_guessed_until_they_are_asked_for():
    costs = given(2)
    mixed = (None, BLOCKED)
    assert costs.cost(mixed) == min(costs._us[costs.plain], costs._us[costs.all])
    costs.ask(mixed)
    assert costs.cost(mixed) == costs._us[mixed]
    costs.forbid(mixed)
    assert costs.cost(mixed) == np.inf


def test_table_is_the_best_of_every_state():
    rng = np.random.default_rng()
    for count in range(1, 5):
        costs = given(count, rng)
        for one in itertools.product((None, BLOCKED), repeat=count):
            if rng.random() < 0.5:
                costs.ask(one)
        call = SimpleNamespace(reads=dict.fromkeys(costs.images[:-1]))
        domains = [INNER if rng.random() < 0.7 else FIXED for _ in range(count)]
        table = best_costs(call, costs, domains)
        assert table.shape == tuple(map(len, domains))
        for at in np.ndindex(table.shape):
            states = [domain[k] for domain, k in zip(domains, at, strict=True)]
            assert table[at] == best(call, costs, states)[1]
