"""Layouts by the profile database, with benches that answer as they are told."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx

from tests.layout.blocked_convolutions import BlockedConvolution, Network, run, run_stock
from tvm_fusion import transform
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.profile import NotNow, Profile, Unmeasured, profiling
from tvm_fusion.layout import choose as measured
from tvm_fusion.layout.record import COMPARED
from tvm_fusion.measure.alternative_modules import modules_of
from tvm_fusion.measure.alternatives import timed
from tvm_fusion.measure.timing import Effort

op = relax.op
LANES = (parse("cpu").device.vector_bits or 256) // 32
WIDE = 2 * LANES
CPU = parse("cpu")
QUICK = Effort(seconds=0.001, fewest=1, most=1, hopeless=float("inf"), timeout=400.0)


class FakeBench:
    """Takes modules of the alternatives, and gives the same times for each, or raises."""

    def __init__(self, *us, raises=None):
        self.us, self.raises, self.asked = us, raises, []

    def __call__(self, alternatives):
        self.asked.append(modules_of(alternatives))
        first, second = (mod["main"] for mod in self.asked[-1])
        assert tvm_ffi.structural_equal(first.ret_ty, second.ret_ty)  # also with layout kernels
        if self.raises:
            raise self.raises
        return self.us, 5


@pytest.fixture(autouse=True)
def nothing_is_far(monkeypatch):
    """Claims of a template that takes nearly no time would leave nothing to ask."""
    monkeypatch.setattr(measured, "FAR", float("inf"))


@pytest.fixture
def records(tmp_path):
    with Records.open(tmp_path / "p.db") as opened:
        yield opened


def chain(net, x):
    """Three convolutions, of which the second adds what the first reads."""
    n = net.builder.normalize
    a = net.conv(x, WIDE)
    b = net.conv(a, WIDE, relu=False)
    return net.conv(n(op.nn.relu(n(op.add(a, b)))), 3, relu=False)


def bordered(net, x):
    """One small convolution between what is fixed: two layout kernels for a blocked one."""
    return net.conv(x, WIDE, 1, relu=False)


def fused(seed, shape, body):
    mod = Network(seed).module(shape, body)
    with CPU.tvm_target(), registered(BlockedConvolution()):
        return transform.FuseOperators()(transform.Legalize()(mod))


@pytest.fixture(scope="module")
def fused_chain():
    return fused(1, (1, 3, 9, 11), chain)


@pytest.fixture(scope="module")
def fused_bordered():
    return fused(1, (1, WIDE, 2, 2), bordered)


def laid_out(mod, profile=None):
    """Choose layouts; gives the module, and what was compared."""
    with (
        CPU.tvm_target(),
        registered(BlockedConvolution()),
        profiling(profile),
        recording() as decisions,
    ):
        found = transform.PlanLayout()(mod)
    return found, [d for d in decisions if d.code == COMPARED]


def ranks(mod):
    """Ranks of all tensors of ``main``: 5 of blocked ones."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [b.var.ty.ndim for b in bindings if isinstance(b.var.ty, relax.TensorType)]


@pytest.mark.parametrize("name", ["fused_chain", "fused_bordered"])
@pytest.mark.parametrize("bench", [None, FakeBench(raises=NotNow())], ids=["none", "spent"])
def test_without_answers_claims_decide(records, request, name, bench):
    mod = request.getfixturevalue(name)
    profile = Profile(records, bench)
    found, told = laid_out(mod, profile)
    default, untold = laid_out(mod)
    assert tvm_ffi.structural_equal(found, default)
    assert untold == []
    assert profile.counts() == {"measured": 0, "known": 0, "failed": 0, "estimated": len(told)}
    assert told
    assert all(d.sentence.endswith("(roofline).") and d.measured_us is None for d in told)


def test_measurements_overturn_blocked_layouts(records, fused_chain):
    assert 5 in ranks(laid_out(fused_chain)[0])
    bench = FakeBench(9.0, 4.0)
    found, told = laid_out(fused_chain, Profile(records, bench))
    assert 5 not in ranks(found)
    assert len(bench.asked) == len(told)
    for number, decision in enumerate(told, start=1):
        assert decision.measured_us == 4.0
        assert decision.sentence == (
            f"{decision.producer}, and what depends on it: 4.0 us in the layout of the graph, "
            f"9.0 us in NCHW{LANES}c (measured, record {number} of p.db)."
        )


def test_measurements_overturn_the_layout_of_the_graph(records, fused_bordered):
    assert 5 not in ranks(laid_out(fused_bordered)[0])
    found, (decision,) = laid_out(fused_bordered, Profile(records, FakeBench(9.0, 4.0)))
    assert 5 in ranks(found)
    assert f"4.0 us in NCHW{LANES}c, 9.0 us in the layout of the graph" in decision.sentence


@pytest.mark.parametrize("us", [(4.0, 9.0), (4.0, 3.95)], ids=["slower", "tie"])
def test_what_takes_no_less_changes_nothing(records, fused_chain, us):
    found, told = laid_out(fused_chain, Profile(records, FakeBench(*us)))
    assert tvm_ffi.structural_equal(found, laid_out(fused_chain)[0])
    assert told
    assert all(d.measured_us == 4.0 and "(measured, record " in d.sentence for d in told)


@pytest.mark.slow
@pytest.mark.parametrize("us", [(9.0, 4.0), (4.0, 9.0)])
def test_a_second_compilation_measures_nothing(records, fused_chain, us):
    bench = FakeBench(*us)
    first = Profile(records, bench)
    found, _ = laid_out(fused_chain, first)
    count = first.measured
    assert count == len(bench.asked) > 0
    for mod in (fused_chain, fused(2, (1, 3, 9, 11), chain)):  # of other weights
        again = Profile(records, bench)
        same, _ = laid_out(mod, again)
        assert again.counts() == {"measured": 0, "known": count, "failed": 0, "estimated": 0}
        assert ranks(same) == ranks(found)
    assert len(bench.asked) == count


def test_what_claims_have_far_behind_is_not_asked(records, fused_chain, monkeypatch):
    monkeypatch.setattr(measured, "FAR", 1.0)
    bench = FakeBench(9.0, 4.0)
    found, told = laid_out(fused_chain, Profile(records, bench))
    assert tvm_ffi.structural_equal(found, laid_out(fused_chain)[0])
    assert told == bench.asked == []


def test_what_fails_is_left_to_claims_and_not_tried_again(records, fused_chain):
    bench = FakeBench(raises=Unmeasured("ended by SIGSEGV"))
    for _ in range(2):
        profile = Profile(records, bench)
        found, told = laid_out(fused_chain, profile)
        assert tvm_ffi.structural_equal(found, laid_out(fused_chain)[0])
        assert profile.failed == len(told) == len(bench.asked)


def test_symbolic_shapes_are_left_to_claims(records):
    bench = FakeBench(9.0, 4.0)
    mod = fused(1, (tirx.Var("n", "int64"), 3, 9, 11), chain)
    found, _ = laid_out(mod, Profile(records, bench))
    assert bench.asked == []
    assert ranks(found) == ranks(laid_out(mod)[0])


@pytest.mark.slow
@pytest.mark.parametrize("us", [(9.0, 4.0), (4.0, 9.0)], ids=["overturned", "kept"])
def test_alternatives_give_the_same_and_so_does_the_model(records, us):
    """Both ways of every question are built and compared; so is the model, however laid out."""

    class Bench(FakeBench):
        def __call__(self, alternatives):
            timed(modules_of(alternatives), CPU, effort=QUICK)  # raises where results differ
            return super().__call__(alternatives)

    bench = Bench(*us)
    for name, shape, body in (
        ("chain", (2, 3, 9, 11), chain),
        ("bordered", (2, WIDE, 2, 2), bordered),
    ):
        mod = Network(1).module(shape, body)
        x = np.random.default_rng().standard_normal(shape).astype("float32")
        with profiling(Profile(records, bench)):
            actual = run(mod, x)
        np.testing.assert_allclose(actual, run_stock(mod, x), rtol=1e-4, atol=1e-5, err_msg=name)
    assert len(bench.asked) > 2
