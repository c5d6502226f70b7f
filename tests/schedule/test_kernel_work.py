"""What claims tell of their kernels: clocks grow with sizes, elements cost where they are moved."""

from dataclasses import replace

import pytest
from group_kernels import group, tensor
from tvm import relax

from tvm_fusion.core.contract.kernel_work import NO_WORK
from tvm_fusion.core.contract.templates import template
from tvm_fusion.device import parse
from tvm_fusion.fusion.cost import CostModel

op = relax.op
SPEC = parse("cuda:sm_90a")
HALF = "float16"


def claim(name, params, body):
    """A template's claim on all of a graph."""
    found = template(name, SPEC.tvm_target()).claim(group(params, body, SPEC), SPEC.device)
    return found


def half(name, *shape):
    return tensor(name, *shape, dtype=HALF)


def product(rows, columns, terms, before=lambda emit, a: a, behind=lambda emit, c: c, a=None):
    def body(emit, left, right):
        return behind(emit, emit(op.matmul(before(emit, left), right)))

    return claim("contraction", (half("a", *(a or (rows, terms))), half("b", terms, columns)), body)


def us(found):
    return CostModel(SPEC.device).estimate(found)


def test_products_of_more_rows_columns_or_terms_are_dearer():
    base = product(512, 768, 768)
    assert base.work.clocks > 0
    assert base.work.element_loads == base.work.element_stores == 0
    for larger in (product(2048, 768, 768), product(512, 3072, 768), product(512, 768, 3072)):
        assert larger.work.clocks > base.work.clocks
        assert us(larger) > us(base)


def test_results_that_are_no_vectors_are_stored_one_by_one():
    found = product(512, 767, 768)
    assert found.work.element_stores == 512 * 767
    assert product(512, 768, 768).work.element_stores == 0


def test_what_is_computed_of_an_operand_counts_for_each_tile_that_loads_it():
    def scaled(emit, a):
        return emit(op.multiply(a, relax.const(1.5, HALF)))

    plain = product(512, 768, 768)
    few, many = product(512, 768, 768, scaled), product(512, 3072, 768, scaled)
    assert plain.work.operand_operations == 0
    assert few.work.operand_operations >= 512 * 768
    assert many.work.operand_operations > few.work.operand_operations


def test_gathered_operands_are_dearer_than_the_same_product():
    def across(emit, a):  # neighbours of a row are 500 elements apart
        return emit(op.reshape(emit(op.permute_dims(a, [1, 0])), (510, 768)))

    plain = product(510, 768, 768)
    gathered = product(510, 768, 768, across, a=(768, 510))
    single = gathered.work
    assert single.element_loads + single.operand_operations >= 0
    assert us(gathered) >= us(plain)


@pytest.mark.parametrize("rows", [64, 4096])
def test_transposed_results_of_rows_are_stored_one_by_one(rows):
    def softmax(emit, x):
        return emit(op.nn.softmax(x))

    def transposed(emit, x):
        return emit(op.permute_dims(softmax(emit, x), [1, 0]))

    plain = claim("rows", [half("x", rows, 1024)], softmax)
    across = claim("rows", [half("x", rows, 1024)], transposed)
    assert plain.work.element_stores == 0
    assert across.work.element_stores == rows * 1024
    assert us(across) > us(plain)


def test_gathered_maps_count_their_loads():
    def negative(emit, x):
        return emit(op.negative(x))

    def taken(emit, x):
        return emit(op.strided_slice(x, [1], [0], [1024], [2]))

    plain = claim("elementwise", [half("x", 64, 1024)], negative)
    single = claim("elementwise", [half("x", 64, 1024)], taken)
    assert plain.work.element_loads == plain.work.element_stores == 0
    assert single.work.element_loads == 64 * 512


@pytest.mark.parametrize(("rows", "size"), [(1, 200704), (200, 100000)])
def test_rows_that_registers_do_not_hold_are_read_again(rows, size):
    """A norm reads a row for its mean, for the deviations from it and to normalize: three times."""

    def norm(emit, x, scale, shift):
        return emit(op.nn.layer_norm(x, scale, shift, -1))

    vectors = [half(name, size) for name in ("scale", "shift")]
    long = claim("rows", [half("x", rows, size), *vectors], norm)
    assert long.work.reread_bytes == 2 * rows * size * 2
    assert us(replace(long, work=NO_WORK)) < us(long)


def test_rows_in_registers_are_read_once():
    kept = claim("rows", [half("x", 64, 4096)], lambda emit, x: op.nn.softmax(x))
    assert kept.work.reread_bytes == 0
