"""Parameter names of kernels that C code generators can print."""

import pytest
import tvm
from relax_modules import main_module
from tvm import ir, relax, s_tir, tirx

from tvm_fusion.core.tir.loops import find
from tvm_fusion.lower.cleanup import ValidNames


@pytest.fixture(scope="module")
def module():
    """A kernel whose parameter is named as in many a model file."""
    x = relax.Var("gpu_0/data 0", relax.TensorType((4, 5), "float32"))
    return relax.transform.LegalizeOps()(main_module([x], relax.op.nn.softmax(x)))


def kernel(mod):
    return next(f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))


def c_source(func):
    return tvm.tirx.build(func.with_attr("global_symbol", "softmax"), "c").inspect_source()


def test_names_become_identifiers(module):
    renamed = kernel(ValidNames()(module))
    assert [param.name.isidentifier() for param in renamed.params] == [True, True]
    assert "gpu_0/data" not in c_source(renamed)
    tvm.ir.assert_structural_equal(renamed, kernel(module))


def test_buffers_named_after_a_parameter_become_identifiers(module):
    schedule = s_tir.Schedule(kernel(module).with_attr("global_symbol", "main"))
    reader = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.cache_read(reader, 0, "local")
    (cached,) = {v.name for v in find(schedule.mod["main"], ir.Var) if v.name.endswith("_local")}
    assert cached == "gpu_0/data 0_local"
    renamed = ValidNames()(schedule.mod)["main"]
    assert all(var.name.isidentifier() for var in find(renamed, ir.Var))
    tvm.ir.assert_structural_equal(renamed, schedule.mod["main"])


def test_valid_names_stay(module):
    once = ValidNames()(module)
    assert kernel(ValidNames()(once)).same_as(kernel(once))


def test_tvm_still_prints_names_as_they_are(module):
    """Fails when TVM prints identifiers itself: then ValidNames can go."""
    assert "gpu_0/data" in c_source(kernel(module))
