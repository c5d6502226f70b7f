"""What gathers, scatters and branches are worth in claims for a CPU."""

from group_kernels import CPU, CUDA, group, tensor
from tvm import relax

from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.index.strides import BRANCH, GATHER, SCATTER
from tvm_fusion.schedule.rows.template import Rows

op = relax.op
SIZE = 6 * 40 * 32
X = [tensor("x", 6, 40, 32)]


def obstacles(template, body):
    """Operations that a CPU is charged and a GPU is not."""
    members = group(X, body)
    cpu, cuda = (template(spec).claim(members, spec.device) for spec in (CPU, CUDA))
    return cpu.flops - cuda.flops


def elementwise(spec):
    return Elementwise(spec is CUDA)


def rows(_spec):
    return Rows()


def test_reading_across_is_a_gather_an_element():
    assert obstacles(elementwise, lambda emit, x: op.permute_dims(x, [0, 2, 1])) == GATHER * SIZE
    assert obstacles(elementwise, lambda emit, x: op.permute_dims(x, [1, 0, 2])) == 0


def test_broadcasts_are_no_gathers():
    def body(emit, x):
        return op.multiply(x, emit(op.max(x, [2], keepdims=True)))

    assert obstacles(rows, body) == 0


def test_storing_across_is_a_scatter_unless_reading_across_is_cheaper():
    def body(emit, x):
        return op.permute_dims(emit(op.add(x, emit(op.sum(x, [2], keepdims=True)))), [0, 2, 1])

    assert obstacles(rows, body) == GATHER * SIZE
    assert GATHER < SCATTER


def test_rows_in_pieces_branch_where_a_vector_is_of_two():
    def joined(axis, end=32):
        def body(emit, x):
            first = emit(op.strided_slice(x, [axis], [0], [end]))
            return op.sum(emit(op.concat([first, emit(op.negative(x))], axis)), [2])

        return body

    assert obstacles(rows, joined(2, 3)) >= BRANCH * 6 * 40 * 35
    assert obstacles(rows, joined(2)) == 0
    assert obstacles(rows, joined(0)) == 0
