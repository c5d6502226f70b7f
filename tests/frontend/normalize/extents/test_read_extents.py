"""Extents that are read from tensors: one variable each, in shapes and in numbers alike."""

import numpy as np
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.frontend.normalize import ReadExtents


def module():
    """Sum 1 to n, then three numbers more, times as many twos, where n is an input."""
    number = relax.Var("number", relax.TensorType((1,), "int64"))
    others = relax.Var("others", relax.TensorType((3,), "int64"))

    def result(emit, *_):
        n = tirx.Var("n", "int64")
        builder = relax.BlockBuilder.current()
        builder.match_cast(emit(relax.op.tensor_to_shape(number)), relax.ShapeType([n]))
        counted = emit(relax.op.arange(1, n + 1, 1, "int64"))
        joined = emit(relax.op.concat([counted, others], 0))
        twos = emit(relax.op.full(relax.ShapeExpr([n + 3]), relax.const(2, "int64"), "int64"))
        return relax.op.sum(emit(relax.op.multiply(joined, twos)))

    return main_module([number, others], result)


def unlowered(mod):
    mod = relax.transform.DecomposeOpsForInference()(mod)
    mod = relax.transform.LegalizeOps()(relax.transform.CanonicalizeBindings()(mod))
    return "R.multiply" in mod["main"].script()


def test_one_name_for_an_extent():
    assert not unlowered(ReadExtents()(module()))


def test_tvm_still_names_an_extent_twice():
    """When this fails, `frontend.normalize.read_extents` can go."""
    assert unlowered(module())


def test_shapes_without_a_name_stay():
    shape = relax.Var("shape", relax.TensorType((2,), "int64"))

    def result(emit, _):
        extents = emit(relax.op.tensor_to_shape(shape))
        return relax.op.full(extents, relax.const(2.0, "float32"), "float32")

    mod = main_module([shape], result)
    assert ReadExtents()(mod).same_as(mod)


def test_results(tmp_path):
    program = tvm_fusion.load(tvm_fusion.compile(module(), "cpu").export(tmp_path / "a"))
    others = np.array([7, -1, 0])
    for count in (1, 5):
        (result,) = program.run({"number": np.array([count]), "others": others}).values()
        assert result == 2 * (count * (count + 1) // 2 + others.sum())
