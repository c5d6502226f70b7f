"""Which configurations of a design space to measure next: Bayesian optimisation.

Design spaces are enumerated (25 to 6,000 members), so no candidates need be bred: a Gaussian
process over the logarithms of the sizes, with the logarithm of time over the default's as its
value, scores them all, and those with the highest expected improvement are measured (Jones,
Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998). A few
of each batch are drawn at random.
"""

import math
from collections.abc import Sequence

import numpy as np

from ...core.contract.template import Config
from ...fusion.database.tuning_records import Trial, text

DRAWN = 0.25  # of a batch, at random
SCORED = 1500  # configurations at a time
KNOWN = 250  # trials that the process is conditioned on: the fastest, and some of the others
LENGTH = 1.0  # of the kernel, in standard deviations of a feature
NOISE = 0.02  # of the logarithm of a measured ratio
FAILED = 4.0  # ratio that stands for a candidate without a time


class Search:
    """Proposes configurations of one task; equal seeds and equal trials give equal proposals.

    Parameters
    ----------
    configs
        The design space, the default first.
    """

    def __init__(self, configs: Sequence[Config], seed: int) -> None:
        self._configs, self._seed = configs, seed
        self._number = {text(config): i for i, config in enumerate(configs)}
        self._features = features_of(configs)
        self._ratios: dict[int, float] = {0: 1.0}  # the default, by definition

    def tell(self, trial: Trial) -> None:
        """Learn what a configuration takes; one that is not in the space says nothing."""
        number = self._number.get(text(trial.config))
        if number:
            self._ratios[number] = min(trial.ratio, FAILED)

    @property
    def is_over(self) -> bool:
        """Whether all configurations are measured."""
        return len(self._ratios) == len(self._configs)

    def propose(self, count: int) -> list[Config]:
        """Choose configurations that are not measured yet."""
        generator = np.random.default_rng([self._seed, len(self._ratios)])
        left = np.array([i for i in range(len(self._configs)) if i not in self._ratios])
        generator.shuffle(left)
        chosen = list(left[: math.ceil(count * DRAWN)])
        scored = left[len(chosen) :][:SCORED]
        known, values = self._known()
        while len(chosen) < min(count, len(left)):
            believed = [*known, *chosen]
            mean, deviation = _posterior(
                self._features[believed],
                np.array([*values, *self._believe(known, values, chosen)]),
                self._features[scored],
            )
            gain = _expected_improvement(min(values), mean, deviation)
            gain[np.isin(scored, chosen)] = -1.0
            chosen.append(scored[int(np.argmax(gain))])
        return [self._configs[i] for i in chosen]

    def _known(self) -> tuple[list[int], list[float]]:
        order = sorted(self._ratios, key=lambda i: (self._ratios[i], i))
        if len(order) > KNOWN:
            step = (len(order) - KNOWN // 2) / (KNOWN // 2)
            rest = order[KNOWN // 2 :]
            order = order[: KNOWN // 2] + [rest[int(k * step)] for k in range(KNOWN // 2)]
        return order, [math.log(self._ratios[i]) for i in order]

    def _believe(
        self, known: list[int], values: list[float], chosen: Sequence[int]
    ) -> Sequence[float]:
        """Treat predicted times of the batch's candidates as measured (kriging believer)."""
        if not chosen:
            return ()
        mean, _ = _posterior(self._features[known], np.array(values), self._features[list(chosen)])
        return list(mean)


def features_of(configs: Sequence[Config]) -> np.ndarray:
    """Write configurations as rows of numbers, each column of unit variance."""
    columns = []
    for name in configs[0]:
        values = [config[name] for config in configs]
        if all(isinstance(value, int) for value in values):
            column = np.log2(1.0 + np.array(values, "float64"))
        else:
            words = sorted({str(value) for value in values})
            column = np.array([float(words.index(str(value))) for value in values])
        deviation = column.std()
        if deviation > 0:
            columns.append((column - column.mean()) / deviation)
    return np.stack(columns, 1) if columns else np.zeros((len(configs), 1))


def _posterior(
    points: np.ndarray, values: np.ndarray, asked: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Condition a Gaussian process of the mean and variance of its values."""
    level, scale = values.mean(), max(float(values.std()), 0.1)
    inner = _kernel(points, points) + (NOISE / scale) ** 2 * np.eye(len(points))
    across = _kernel(points, asked)
    solved = np.linalg.solve(inner, np.concatenate([(values - level)[:, None], across], 1))
    mean = level + across.T @ solved[:, 0]
    variance = 1.0 - np.einsum("ij,ij->j", across, solved[:, 1:])
    return mean, scale * np.sqrt(np.maximum(variance, 1e-12))


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matern kernel of order 5/2."""
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    distance = np.sqrt(5 * np.maximum(squares, 0.0)) / LENGTH
    return (1 + distance + distance**2 / 3) * np.exp(-distance)


def _expected_improvement(best: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return deviation * (z * below + density)
