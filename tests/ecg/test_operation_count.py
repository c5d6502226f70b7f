"""Operations of expressions, with names for what they share."""

from tvm import tirx

from tvm_fusion.ecg.operation_count import operations


def test_named_subexpressions_count_once_and_what_is_made_of_them_counts():
    x = tirx.decl_buffer((8,), "float32", "x")
    i = tirx.Var("i", "int64")
    load, name = tirx.BufferLoad(x, [i]), tirx.Var("shared", "float32")
    position = tirx.Var("position", "int64")
    assert operations(name * name + name) == 0
    assert operations(name * name + name, bindings=[(name, load)]) == 2
    assert operations(name * name + name, bindings=[(name, load * load)]) == 3
    assert operations(position * position, bindings=[(position, i + i)]) == 0
