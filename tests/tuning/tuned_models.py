"""Small models with something to tune, and benches that measure as they are told."""

import math

import numpy as np
from relax_modules import main_module
from tvm import relax

from tvm_fusion.fusion.database.tuning_records import Trial
from tvm_fusion.measure.isolate import Failed
from tvm_fusion.measure.timing import Effort

QUICK = Effort(seconds=0.002, fewest=2, most=3, timeout=600.0)


def two_products(rows=29, seed=0):
    """``tanh(x @ w) @ v`` and sums along rows, which have no choices."""
    rng = np.random.default_rng(seed)
    w, v = (rng.standard_normal(shape).astype("float32") / 8 for shape in ((72, 300), (300, 70)))

    def body(emit, x):
        hidden = emit(relax.op.tanh(emit(relax.op.matmul(x, relax.const(w)))))
        return emit(relax.op.cumsum(emit(relax.op.matmul(hidden, relax.const(v))), 1))

    x = relax.Var("x", relax.TensorType((rows, 72), "float32"))
    return main_module([x], body)


def attention():
    """``softmax(q k) v``: the planner asks whether to take it as one kernel."""

    def body(emit, q, k, v):
        scores = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k))))
        return emit(relax.op.matmul(scores, v))

    shapes = {"q": (19, 24), "k": (24, 19), "v": (19, 24)}
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    return main_module(params, body)


def smooth(config):
    """Microseconds that depend on a configuration smoothly: 6 x 32 tiles are best."""
    return 10.0 * (1 + abs(math.log2(config["mr"] / 6)) + abs(math.log2(config["nr"] / 32)))


class FakeBench:
    """Takes times from a function; a default takes ``default_us``."""

    us = staticmethod(smooth)
    default_us = 30.0
    measured: list
    raced: list

    def __init__(self, task, spec, seed):
        self.task = task

    def trials(self, configs, effort):
        return (self.trial(config, effort) for config in configs)

    def trial(self, config, effort):
        self.measured.append(config)
        is_default = config == self.task.configs[0]
        us = self.default_us if is_default else self.us(config)
        if us is None:
            return Trial(config, None, None, "ended by SIGSEGV")
        return Trial(config, us, self.default_us)

    def race(self, configs, effort):
        self.raced.append(list(configs))
        if any(self.us(config) is None for config in configs):
            raise Failed("ended by SIGSEGV")
        return [*map(self.us, configs), self.default_us]
