"""What an artifact keeps of a group's kernels: quickly, and as explain has it."""

import pytest
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.contract.templates import templates
from tvm_fusion.deploy.runtime.arguments import evaluate
from tvm_fusion.device import device_of, parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.describe import describe
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.contraction.gpu import space
from tvm_fusion.transform import Legalize


def claim(target, rows, dtype):
    """Of a product and what is added to it."""
    types = [relax.TensorType(s, dtype) for s in ((rows, 256), (256, 512), (512,))]
    x, w, b = (relax.Var(n, t) for n, t in zip("xwb", types, strict=True))
    body = relax.op.add(relax.op.matmul(x, w), b)
    with target:
        mod = Legalize()(relax.transform.Normalize()(main_module([x, w, b], body)))
    graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
    group = Group(tuple(op for op in graph.operators if not op.is_opaque))
    answers = (t.claim(group, device_of(target)) for t in templates(target))
    return next(answer for answer in answers if not isinstance(answer, Refusal))


def test_a_group_on_a_gpu_without_its_design_space(monkeypatch):
    def enumerate_all(*_):
        pytest.fail("the whole design space is enumerated, which takes seconds")

    target = parse("cuda:sm_90a").tvm_target()
    product, device = claim(target, 4096, "float16"), device_of(target)
    monkeypatch.setattr(space, "wgmma_configs", enumerate_all)
    info = describe(product, device)
    assert info.operators == ("matmul", "add")
    assert info.flops == (2 * 256 + 1) * 4096 * 512
    assert info.bytes == product.bytes
    assert info.dtype == "float16"
    assert info.config["kernel"] in ("wgmma", "mma.sync")
    estimate = CostModel(device).cost(product)
    assert (info.us, info.source) == (estimate.us, "fitted")


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_symbolic_operations_are_an_expression(rows):
    target = parse("cpu:x86-64-v3").tvm_target()
    info = describe(claim(target, tirx.Var("n", "int64"), "float32"), device_of(target))
    assert info.bytes is None
    assert evaluate(info.flops, {"n": rows}) == (2 * 256 + 1) * rows * 512
    assert info.dtype == "float32"
