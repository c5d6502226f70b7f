"""Which elements become vectors."""

from tvm import sym, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.schedule.gpu.memory.vector_loads import ElementLoads


def test_neighbours_are_a_vector_and_single_numbers_are_not():
    row, number = declare([16], "float16", "row"), declare([], "float16", "number")
    elements = ElementLoads(sym.Analyzer())
    for lane in range(8):
        place = tirx.IntImm("int64", lane)
        elements.read(tirx.BufferLoad(row, [place]) * tirx.BufferLoad(number, []))
    vectors = elements.vectors()
    assert [(v.first.source.name, len(v.elements)) for v in vectors] == [("row", 8), ("number", 1)]


def vectors_along(shape, dim):
    """Sizes of the vectors of eight elements along a dimension."""
    buffer, elements = declare(shape, "float16", "weight"), ElementLoads(sym.Analyzer())
    for lane in range(8):
        place = [tirx.IntImm("int64", lane if n == dim else 0) for n in range(len(shape))]
        elements.read(tirx.BufferLoad(buffer, place))
    return [len(v.elements) for v in elements.vectors()]


def test_dimensions_of_one_element_at_the_end_do_not_count():
    """Pointwise convolutions have weights of ``[K, C, 1, 1]`` and biases of ``[1, K, 1, 1]``."""
    assert vectors_along([3, 16, 1, 1], 1) == [8]
    assert vectors_along([1, 16, 1, 1], 1) == [8]
    assert vectors_along([16, 16], 0) == [1] * 8
    assert vectors_along([16, 2, 1], 0) == [1] * 8
