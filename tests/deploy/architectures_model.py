"""A model of which some kernels depend on the architecture, and others do not."""

import numpy as np
from relax_modules import main_module
from tvm import relax

ROWS, WIDTH = 8, 256


def model():
    """Two products in half precision, for which tensor cores are, with rows between them.

    Five kernels or more: CUDA graphs are made of them.
    """
    rng = np.random.default_rng(7)
    weights = [
        relax.const(rng.standard_normal((WIDTH, WIDTH)).astype("float16") / WIDTH) for _ in range(3)
    ]
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), "float16"))

    def result(emit, *_):
        value = x
        for weight in weights:
            value = emit(relax.op.matmul(value, weight))
            value = emit(relax.op.nn.softmax(value))
        return value

    return main_module([x], result)
