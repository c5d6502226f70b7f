"""The layout stage with a template of convolutions over blocked images."""

import json

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.layout.blocked_convolutions import (
    BlockedConvolution,
    Network,
    planned,
    run,
    run_stock,
)
from tvm_fusion import transform
from tvm_fusion.core.contract.template import TEMPLATE
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.tir.loops import constant
from tvm_fusion.device import parse
from tvm_fusion.report.explain.result import Explanation
from tvm_fusion.report.explain.run import explain

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
LANES = (parse("cpu").device.vector_bits or 256) // 32
WIDE = 2 * LANES
ODD = LANES + LANES // 2 + 1  # of no whole blocks: channels last
WIDTH = 11  # of images, fewer than the channels


def calls(mod):
    """List the calls of groups: shapes of results, and the group's function."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    found = [b for b in bindings if isinstance(b.value, relax.Call) and b.value.op in mod.functions]
    return [(b, mod[b.value.op]) for b in found]


def blocked(mod):
    """Tell of each image whether its channels are blocks, or the last axis.

    A single pixel, which lies in memory alike in all layouts, counts as if they were.
    """
    types = [b.var.ty for block in mod["main"].body.blocks for b in block.bindings]
    shapes = [list(t.shape.values) for t in types if isinstance(t, relax.TensorType)]
    images = [[constant(extent) or 0 for extent in s] for s in shapes if len(s) >= 4]
    return [len(s) == 5 or s[-1] > WIDTH or s[2:] == [1, 1] for s in images]


def layout_kernels(decisions):
    return [d for d in decisions if d.code == "layout_kernel"]


def residual(net, x):
    n = net.builder.normalize
    a = net.conv(x, WIDE)
    b = net.conv(net.conv(a, ODD), WIDE, relu=False)
    c = n(op.nn.relu(n(op.add(a, b))))
    return net.conv(c, 3, relu=False)


def concats(net, x):
    n = net.builder.normalize
    a = net.conv(x, LANES)
    parts = [a]
    for channels in (LANES, ODD, WIDE):
        whole = n(op.concat(parts, 1)) if len(parts) > 1 else parts[0]
        parts.append(net.conv(n(op.tanh(whole)), channels))
    return net.conv(n(op.tanh(n(op.concat(parts, 1)))), 4)


def depthwise(net, x):
    n = net.builder.normalize
    a = net.conv(x, WIDE, stride=2)
    s = n(op.mean(a, [2, 3], keepdims=True))
    s = n(op.nn.relu(n(op.nn.conv2d(s, net.weight(4, WIDE, 1, 1)))))
    s = n(op.sigmoid(n(op.nn.conv2d(s, net.weight(WIDE, 4, 1, 1)))))
    b = net.conv(n(op.multiply(a, s)), WIDE, groups=WIDE)
    p = n(op.nn.max_pool2d(b, (3, 3), strides=(2, 2), padding=(1, 1)))
    g = n(op.mean(net.conv(p, ODD, 1), [2, 3]))
    return n(op.matmul(g, net.weight(ODD, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("body", [residual, concats, depthwise])
def test_networks_are_right_and_blocked_throughout(body):
    mod = Network(1).module((2, 3, 9, 11), body)
    with recording() as decisions:
        found = planned(mod)
    relax.analysis.well_formed(found)
    images = blocked(found)
    if body is concats:  # behind it, images of odd channels cost as little in the graph's layout
        assert any(images)
    else:
        assert all(images if body is depthwise else images[:-1])
    assert len(images) >= 4
    assert body is concats or not layout_kernels(decisions)
    x = np.random.default_rng(2).standard_normal((2, 3, 9, 11)).astype("float32")
    np.testing.assert_allclose(run(mod, x), run_stock(mod, x), rtol=1e-4, atol=1e-5)


def test_decisions_name_every_edge():
    mod = Network(1).module((1, 3, 9, 11), residual)
    with recording() as decisions:
        found = planned(mod)
    edges = [d for d in decisions if d.code == "layout"]
    names = [b.var.name for b, _ in calls(found)]
    assert len(edges) == 4  # a residual edge besides three along the chain
    assert [d.sentence for d in edges].count(f"In memory in NCHW{LANES}c.") == 3
    assert [d.sentence for d in edges].count("In memory in NHWC.") == 1
    assert {d.producer for d in edges} <= {n.split("_N")[0] for n in names}


def test_without_a_template_that_profits_nothing_changes():
    mod = Network(1).module((1, 3, 9, 11), residual)
    with parse("cpu").tvm_target():
        fused = transform.FuseOperators()(transform.Legalize()(mod))
        found = transform.PlanLayout()(fused)
    assert not any(blocked(found)) or any(
        str(f.attrs[TEMPLATE]) == "convolution" for _, f in calls(found)
    )


@pytest.mark.slow
def test_inputs_and_outputs_keep_their_layout():
    """A wide input is copied once for two convolutions that read it; the output is plain."""

    def body(net, x):
        n = net.builder.normalize
        return n(op.concat([net.conv(x, WIDE), net.conv(x, WIDE, 1)], 1))

    mod = Network(1).module((1, WIDE, 9, 11), body)
    with recording() as decisions:
        found = planned(mod)
    (kernel,) = layout_kernels(decisions)
    assert "from the layout of the graph to NCHW" in kernel.sentence
    assert "comes from outside" in kernel.sentence
    assert tvm_ffi.structural_equal(found["main"].ret_ty, mod["main"].ret_ty)
    assert tvm_ffi.structural_equal(found["main"].params[0].ty, mod["main"].params[0].ty)
    x = np.random.default_rng(2).standard_normal((1, WIDE, 9, 11)).astype("float32")
    np.testing.assert_allclose(run(mod, x), run_stock(mod, x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_group_reads_one_layout_and_writes_another():
    """A template that refuses one convolution leaves that one in the layout of the graph."""

    def body(net, x):
        a = net.conv(net.conv(x, WIDE), WIDE, 5)
        return net.conv(net.conv(a, WIDE), 3)

    def is_five(group):
        return any("5, 5" in str(v.type) or _kernel(v) == 5 for v in group.inputs)

    def _kernel(value):
        return int(value.shape[-1]) if len(value.shape) == 4 and value.is_parameter else 0

    template = BlockedConvolution(refuses=is_five)
    mod = Network(1).module((1, 3, 9, 11), body)
    found = planned(mod, template)
    names = [str(f.attrs[TEMPLATE]) for _, f in calls(found)]
    assert names.count("blocked_convolution") == 3
    x = np.random.default_rng(2).standard_normal((1, 3, 9, 11)).astype("float32")
    np.testing.assert_allclose(run(mod, x, template), run_stock(mod, x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_symbolic_batch():
    n = tvm.tirx.Var("n", "int64")
    mod = Network(1).module((n, 3, 9, 11), residual)
    assert blocked(planned(mod)) == [True, True, True, False]
    x = np.random.default_rng(2).standard_normal((3, 3, 9, 11)).astype("float32")
    np.testing.assert_allclose(run(mod, x), run_stock(mod, x), rtol=1e-4, atol=1e-5)


def test_idempotent():
    mod = Network(1).module((1, 3, 9, 11), residual)
    once = planned(mod)
    again = planned(once)
    assert tvm_ffi.structural_equal(once, again, map_free_vars=True)


def test_explanation_shows_layouts():
    mod = Network(1).module((1, 3, 9, 11), residual)
    with registered(BlockedConvolution()):
        explanation = explain(mod, stock=False)
    assert f"In memory in NCHW{LANES}c. 3 edges" in str(explanation)
    assert "In memory in NHWC. 1 edge" in str(explanation)
    again = Explanation.from_json(json.loads(json.dumps(explanation.to_json())))
    assert again.layouts == explanation.layouts
    about = explanation.of(explanation.layouts[0].producer)
    assert 0 < len(about.layouts) <= len(explanation.layouts)
