"""Bounds of kernels: the operations of a convolution are without its padding, whatever fuses."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from benchmarks.cost_model.sample import distinct
from benchmarks.tuning.bounds import operations
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.tuning.tasks import survey


@pytest.mark.parametrize(
    ("size", "stride", "taps"),
    [(8, 1, 3 * 8 - 2), (11, 1, 3 * 11 - 2), (8, 2, 3 * 4 - 1)],
    ids=["both borders", "odd", "stride 2, one border"],
)
def test_products_with_padding_are_no_operations(size, stride, taps):
    """Rows times places of the window along one axis: ``taps`` of them are inside of the image."""
    weight = relax.const(np.ones((32, 16, 3, 3), "float32"))

    def body(emit, x):
        x = emit(relax.op.nn.silu(x))  # computed once an element, and not for each product
        x = emit(relax.op.nn.conv2d(x, weight, strides=stride, padding=1))
        return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, square, strides=1))))

    square = relax.const(np.ones((24, 32, 1, 1), "float32"))
    x = relax.Var("x", relax.TensorType((1, 16, size, size), "float32"))
    config, spec = FusionConfig(), parse("cpu")
    found = survey(import_model(main_module([x], body), config), spec, config)
    total = sum(calls * operations(claim) for claim, _, calls, _ in distinct(found.planned, spec))
    pixels = -(-size // stride)
    products = 2 * 16 * 32 * taps**2 + 2 * 32 * 24 * pixels**2
    others = total - products
    assert 0 < others < 40 * (16 * size**2 + 24 * pixels**2)
