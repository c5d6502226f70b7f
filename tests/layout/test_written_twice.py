"""Tensors that are read in two layouts, which their producer writes: no kernel copies them."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.layout.blocked_convolutions import BlockedConvolution, Network, planned
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.layout import network as twice
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant

op = relax.op
WIDE = 32


@pytest.fixture
def module():
    """Write a network whose first result a convolution reads as well, in blocks."""
    net = Network(int(np.random.default_rng().integers(1 << 30)))
    x = relax.Var("x", relax.TensorType((1, 3, 9, 11), "float32"))
    with net.builder.function("main", [x]):
        with net.builder.dataflow():
            y = net.builder.emit_output(net.conv(x, WIDE))
            z = net.builder.emit_output(net.conv(net.conv(y, WIDE), 3))
        net.builder.emit_func_output(relax.Tuple([y, z]))
    return net.builder.get()


@pytest.fixture
def for_nothing(monkeypatch):
    """Let a second layout cost its producer nothing."""
    ask = twice._us
    monkeypatch.setattr(twice, "_us", lambda *given: 0.0 if given[2] else ask(*given))


def layout_kernels(mod):
    with recording() as decisions:
        found = planned(mod)
    return found, [d for d in decisions if d.code == "layout_kernel"]


def results(mod, x, **pipeline):
    with registered(BlockedConvolution()):
        built = tvm.compile(mod, parse("cpu").tvm_target(), **pipeline)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return [r.numpy() for r in found]


@pytest.mark.slow
@pytest.mark.usefixtures("for_nothing")
def test_a_convolution_writes_both(module):
    found, kernels = layout_kernels(module)
    assert not kernels
    types = [b.var.ty for block in found["main"].body.blocks for b in block.bindings]
    tuples = [t for t in types if isinstance(t, relax.TupleType)]
    assert [4, 5] in [sorted(f.ndim for f in t.fields) for t in tuples]
    assert tvm_ffi.structural_equal(found["main"].ret_ty, module["main"].ret_ty)
    x = np.random.default_rng().standard_normal((1, 3, 9, 11)).astype("float32")
    ours = results(module, x, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    for got, wanted in zip(ours, results(module, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_what_costs_more_than_a_copy_is_copied(module, monkeypatch):
    ask = twice._us
    monkeypatch.setattr(twice, "_us", lambda *given: ask(*given) + 1e6 * len(given[2]))
    _, kernels = layout_kernels(module)
    assert len(kernels) == 1


def test_a_variant_names_both_results():
    from group_kernels import group, tensor

    members = group(
        [tensor("x", 1, 16, 5, 7)], lambda emit, x: op.nn.relu(emit(op.add(x, relax.const(1.0))))
    )
    (result,) = members.outputs
    made = variant(members, {result: Layout(8)}, twice=[result])
    assert [len(v.shape) for v in made.group.outputs] == [4, 5]
    assert [made.original[v] for v in made.group.outputs] == [result, result]
