"""Which decisions the profile database is asked about, with the templates of a target."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.profile import NotNow, Profile, profiling

op = relax.op
HALF = "float16"


def var(name, *shape, dtype=HALF):
    return relax.Var(name, relax.TensorType(shape, dtype))


def weight(*shape, dtype=HALF):
    return relax.const(np.ones(shape, dtype))


@pytest.fixture
def asked(tmp_path):
    """Plan a module; gives titles and templates of the groups of every alternative asked about."""

    def plan(inputs, body, target="cuda:sm_90a"):
        found = []

        def bench(alternatives):
            ways = [[(p.group.title, p.template) for p in parts] for parts in alternatives]
            found.append(ways)
            raise NotNow

        mod = main_module(list(inputs), body)
        with Records.open(tmp_path / "p.db") as records, parse(target).tvm_target():
            legal = transform.Legalize()(mod)
            with profiling(Profile(records, bench)):
                transform.PlanLayout()(transform.FuseOperators()(legal))
        return found

    return plan


def words(part):
    return part[0].split(" + ")


def test_a_norm_inside_of_a_product_or_before_it(asked):
    def body(emit, x):
        h = emit(op.nn.rms_norm(x, weight(512), [-1]))
        return emit(op.matmul(h, weight(512, 1024)))

    found = asked([var("x", 4, 512)], body)
    assert any(
        len(first) == 1
        and {"rms_norm", "matmul"} <= set(words(first[0]))
        and [words(part)[0] for part in second] == ["rms_norm", "matmul"]
        for first, second in found
    )


def test_rows_split_or_not(asked):
    def body(emit, x):
        return emit(op.nn.group_norm(x, weight(256), weight(256), 32, 1, [2, 3]))

    found = asked([var("x", 1, 256, 128, 128)], body)
    assert [{part[1] for (part,) in ways} for ways in found] == [{"rows", "split_rows"}]


def test_two_products_in_one_kernel_or_two(asked):
    def body(emit, x):
        up, gate = (emit(op.matmul(x, weight(256, 256))) for _ in range(2))
        return emit(op.multiply(emit(op.nn.silu(gate)), up))

    found = asked([var("x", 128, 256)], body)
    assert any(
        len(first) == 1
        and words(first[0]).count("matmul") == 2
        and [words(part)[0] for part in second].count("matmul") == 2
        for first, second in found
    )


def test_layouts(asked):
    def body(emit, x):
        for _ in range(2):
            x = emit(op.nn.relu(emit(op.nn.conv2d(x, weight(64, 64, 3, 3), padding=1))))
        return x

    found = asked([var("x", 1, 64, 56, 56)], body)
    assert any(
        "NHWC" in first[0][0] and ("conv2d + relu", "contraction") in second
        for first, second in found
    )
