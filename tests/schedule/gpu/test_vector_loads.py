"""Which elements become vectors."""

from tvm import sym, tirx

from tvm_fusion._tvm.buffer import declare
from tvm_fusion.schedule.gpu.vector_loads import ElementLoads


def test_neighbours_are_a_vector_and_single_numbers_are_not():
    row, number = declare([16], "float16", "row"), declare([], "float16", "number")
    elements = ElementLoads(sym.Analyzer())
    for lane in range(8):
        place = tirx.IntImm("int64", lane)
        elements.read(tirx.BufferLoad(row, [place]) * tirx.BufferLoad(number, []))
    vectors = elements.vectors()
    assert [(v.first.source.name, len(v.elements)) for v in vectors] == [("row", 8), ("number", 1)]
