"""Column reductions on GPUs: right in the emulator, terms of a column split over a block."""

import numpy as np
import pytest
from group_kernels import CUDA, agrees, cuda_kernel, emitted, group, run_launches, tensor
from tvm import relax

from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import parse
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.schedule.columns.template import ColumnReductions
from tvm_fusion.schedule.rows.template import Rows

op = relax.op
TEMPLATE = ColumnReductions()


def mean(emit, x):
    return emit(op.mean(x, [1, 2]))


def silu_mean(emit, x):
    x = emit(op.nn.silu(emit(op.astype(x, "float32"))))
    return emit(op.astype(emit(op.mean(x, [1, 2], keepdims=True)), "float16"))


def largest(emit, x):
    return emit(op.max(x, [1]))


def norm_squared(emit, x):
    return emit(op.sqrt(emit(op.sum(emit(op.multiply(x, x)), [0]))))


def silu(x):
    x = x.astype("float64")
    return x / (1 + np.exp(-x))


CASES = {
    "mean": (tensor("x", 2, 9, 7, 24), mean, lambda x: x.mean((1, 2))),
    "half": (
        tensor("x", 1, 11, 13, 40, dtype="float16"),
        silu_mean,
        lambda x: silu(x).mean((1, 2), keepdims=True),
    ),
    "many terms": (
        tensor("x", 1, 61, 31, 8, dtype="float16"),
        silu_mean,
        lambda x: silu(x).mean((1, 2), keepdims=True),
    ),
    "maximum": (tensor("x", 3, 35, 12), largest, lambda x: x.max(1)),
    "many columns": (tensor("x", 2, 33, 1096), largest, lambda x: x.max(1)),
    "no batch": (tensor("x", 1027, 6), norm_squared, lambda x: np.sqrt((x * x).sum(0))),
}


def image_and_mean(emit, x):
    """As in front of squeeze and excitation: the activated image, and its means."""
    y = emit(op.astype(emit(op.nn.silu(emit(op.astype(x, "float32")))), "float16"))
    return [y, emit(op.mean(y, [1, 2]))]


def test_elements_are_stored_as_well():
    x = tensor("x", 2, 9, 13, 24, dtype="float16")
    made = emitted(TEMPLATE, [x], image_and_mean, CUDA)
    agrees(made, [x], lambda x: [silu(x), silu(x).mean((1, 2))], CUDA, 2e-3)


def test_terms_of_few_columns_are_split():
    """Parts of an image in blocks, with its elements; a second launch joins them."""
    x = tensor("x", 2, 66, 63, 8, dtype="float16")
    claim = TEMPLATE.claim(group([x], image_and_mean, CUDA), CUDA.device)
    assert isinstance(claim, Claim)
    assert claim.launches == len(TEMPLATE.emit(claim, CUDA.tvm_target()).kernels) == 2
    assert claim.parallelism > 66
    drawn = np.random.default_rng().standard_normal((2, 66, 63, 8)).astype("float16")
    image, means = run_launches(claim, [drawn], [(drawn.shape, "float16"), ((2, 8), "float16")])
    exact = silu(drawn)
    assert np.abs(image - exact).max() <= 2e-3
    assert np.abs(means - exact.mean((1, 2))).max() <= 2e-3


def test_elements_elsewhere_are_refused():
    def body(emit, x):
        turned = emit(op.permute_dims(emit(op.nn.relu(x)), [0, 2, 1]))
        return [turned, emit(op.max(x, [1]))]

    x = tensor("x", 2, 64, 16, dtype="float16")
    assert isinstance(TEMPLATE.claim(group([x], body, CUDA), CUDA.device), Refusal)


@pytest.mark.parametrize("name", CASES)
def test_a_column_reduction_is_right(name):
    x, body, reference = CASES[name]
    made = emitted(TEMPLATE, [x], body, CUDA)
    half = x.ty.dtype == "float16"
    agrees(made, [x], lambda x: [reference(x)], CUDA, 2e-3 if half else 2e-5)


def test_it_is_cheaper_than_a_thread_for_each_row():
    """The mean of a channels-last image: of few rows, which threads of neighbouring rows load."""
    x = tensor("x", 1, 112, 112, 32, dtype="float16")
    members = group([x], silu_mean, CUDA)
    cost = CostModel(CUDA.device)
    ours, rows = (t.claim(members, CUDA.device) for t in (TEMPLATE, Rows()))
    assert isinstance(ours, Claim)
    assert isinstance(rows, Claim)
    assert cost.estimate(ours) < 10 < cost.estimate(rows)


@pytest.mark.parametrize(
    ("x", "body"),
    [
        (tensor("x", 64, 48), lambda e, x: e(op.sum(x, [1]))),  # along rows
        (tensor("x", 64, 7), lambda e, x: e(op.sum(x, [0]))),  # no vectors
        (tensor("x", 64, 48), lambda e, x: e(op.nn.softmax(x, 0))),  # two reductions
        (tensor("x", 64, 48), lambda e, x: e(op.prod(x, [0]))),
    ],
)
def test_refusals(x, body):
    assert isinstance(TEMPLATE.claim(group([x], body, CUDA), CUDA.device), Refusal)


def test_other_devices_are_refused():
    members = group([CASES["mean"][0]], mean, CUDA)
    assert isinstance(TEMPLATE.claim(members, parse("rocm:gfx942").device), Refusal)


@pytest.mark.cuda_toolchain
def test_loads_are_vectors_before_the_first_use():
    x, body, _ = CASES["many terms"]
    text = cuda_kernel(emitted(TEMPLATE, [x], body, CUDA).func)
    assert text.count("*(half2*)(x_vector") + text.count("*(uint1*)(x_vector") >= 2
    assert "__syncthreads" in text
