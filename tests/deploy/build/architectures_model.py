"""A model of which some kernels depend on the architecture, and others do not."""

import numpy as np
from tvm import relax

ROWS, WIDTH = 16, 256


def model():
    """Two products in half precision, for which tensor cores are, with rows between them.

    Five kernels or more: CUDA graphs are made of them.
    """
    rng = np.random.default_rng(7)
    weights = [
        relax.const(rng.standard_normal((WIDTH, WIDTH)).astype("float16") / WIDTH) for _ in range(3)
    ]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for weight in weights:
                value = builder.emit(relax.op.matmul(value, weight))
                value = builder.emit(relax.op.nn.softmax(value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()
