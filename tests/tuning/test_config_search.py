"""Proposals: new ones, the same for the same seed, and better than chance."""

import itertools

import numpy as np
import pytest
from tuned_models import smooth

from tvm_fusion.fusion.database.tuning_records import Trial, text
from tvm_fusion.tuning.search.bayesian import Search

SPACE = [
    {"mr": mr, "nr": nr, "kc": kc, "b": b}
    for mr, nr, kc, b in itertools.product(
        (1, 2, 3, 4, 6, 8, 10), (16, 32, 48, 64), (64, 128, 256, 512), ("packed", "copied")
    )
]


def run(seed, trials, us=smooth, space=SPACE):
    """Search until so many configurations are measured; they, and the best ratio after each."""
    search, proposed, best = Search(space, seed), [], []
    while len(proposed) < trials and not search.is_over:
        for config in search.propose(8):
            search.tell(Trial(config, us(config), 30.0))
            proposed.append(config)
            best.append(min(us(config) / 30.0, best[-1] if best else 1.0))
    return proposed, best


def test_equal_seeds_propose_the_same():
    assert run(3, 40)[0] == run(3, 40)[0]
    assert run(3, 40)[0] != run(4, 40)[0]


def test_a_search_that_is_continued_proposes_the_same():
    whole = run(5, 48)[0]
    search = Search(SPACE, 5)
    for config in sorted(whole[:24], key=text):  # as the records give them back
        search.tell(Trial(config, smooth(config), 30.0))
    assert search.propose(8) == whole[24:32]


def test_nothing_is_proposed_twice_and_everything_once():
    space = SPACE[:37]
    proposed, _ = run(0, 1000, space=space)
    assert sorted(map(text, proposed)) == sorted(map(text, space[1:]))  # the default is known


def test_the_best_is_found_sooner_than_by_chance():
    least = min(map(smooth, SPACE)) / 30.0
    needed = [next(i for i, b in enumerate(run(seed, 64)[1]) if b == least) for seed in range(5)]
    # Eight of 224 configurations are best: chance needs 24 trials in the mean, and 60 now and then.
    assert np.mean(needed) < 20
    assert max(needed) < 40


def test_failures_are_learnt_from():
    def us(config):
        return None if config["nr"] >= 48 else smooth(config)

    search, failed = Search(SPACE, 0), []
    for _ in range(10):
        for config in search.propose(8):
            time = us(config)
            failed.append(time is None)
            search.tell(Trial(config, time, 30.0 if time else None, "" if time else "crashed"))
    assert sum(failed[40:]) < sum(failed[:8]) * 5 + 8  # those that are drawn at random fail on


@pytest.mark.parametrize("space", [[{"mr": 1}, {"mr": 2}], [{"w": "a"}, {"w": "b"}, {"w": "c"}]])
def test_tiny_spaces(space):
    search = Search(space, 0)
    assert sorted(map(text, search.propose(8))) == sorted(map(text, space[1:]))


def test_records_of_other_spaces_say_nothing():
    search = Search(SPACE[:4], 0)
    search.tell(Trial({"something": 5}, 1.0, 30.0))
    assert len(search.propose(8)) == 3
