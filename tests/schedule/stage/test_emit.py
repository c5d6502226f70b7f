"""Groups read back from the IR and emitted; promises that are not kept."""

import numpy as np
from group_kernels import tensor
from relax_modules import main_module
from tvm import relax
from tvm_ffi import structural_equal

from tests.schedule.toy_kernels import (
    MATRIX,
    TARGET,
    Chain,
    Doubled,
    Toy,
    compiled,
    random,
    run,
    through_workspace,
)
from tvm_fusion import transform
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.schedule.stage.emit import MOST_CONFIGS, emit_groups, group_of, is_group


def test_a_broken_claim_is_recorded_and_planned_again():
    def emission(group):
        raise ValueError("no such kernel\nand more about it")

    with recording() as decisions:
        _, mod = compiled(Chain, Toy("tanh+add", emission))
    (broken,) = [d for d in decisions if d.code == "claim_broken"]
    assert broken.sentence == (
        "toy claimed this group and could not emit it: ValueError: no such kernel"
    )
    x, y = random(*MATRIX), random(*MATRIX) + 1
    np.testing.assert_allclose(run(mod, x, y)[0], np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_a_template_that_refuses_what_it_claimed_breaks_its_promise():
    toy = Toy("tanh+add", through_workspace)
    with TARGET, registered(toy):
        planned = transform.FuseOperators()(transform.Legalize()(Chain))
        toy.titles = ["nothing"]
        with recording() as decisions:
            emitted, broken = emit_groups(planned, TARGET)
    assert not emitted
    assert [name for name, _ in broken.values()] == ["toy"]
    assert "refuses what was planned" in decisions[0].sentence


def test_a_template_that_is_gone_breaks_its_promise():
    with TARGET, registered(Toy("tanh+add", through_workspace)):
        planned = transform.FuseOperators()(transform.Legalize()(Chain))
    with TARGET, recording() as decisions:
        mod = transform.ScheduleKernels()(planned)
    assert "toy" in next(d for d in decisions if d.code == "claim_broken").sentence
    x, y = random(*MATRIX), random(*MATRIX) + 1
    np.testing.assert_allclose(run(mod, x, y)[0], np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_a_group_reads_back_as_it_was_written():
    with TARGET, registered(Toy("tanh+add", through_workspace)):
        planned = transform.FuseOperators()(transform.Legalize()(Chain))
    (func_,) = [f for f in planned.functions.values() if is_group(f)]
    group = group_of(planned, func_)
    assert group.title == "tanh + add"
    assert [str(v.type.shape) for v in group.inputs] == ["R.shape([6, 8])"] * 2


def emitted_under(inspect):
    """Emissions of a product on a GPU whose machine code is said to be unfit, and decisions."""
    target = parse("rocm:gfx942").tvm_target()
    params = [tensor("x", 1, 512), tensor("w", 512, 256)]
    mod = main_module(params, lambda emit, x, w: relax.op.matmul(x, w))
    with target, recording() as decisions:
        planned = transform.FuseOperators()(transform.Legalize()(mod))
        emitted, broken = emit_groups(planned, target, inspect=inspect)
    assert not broken
    return [*emitted.values()], [d for d in decisions if d.code == "config_unfit"]


def test_a_configuration_whose_code_is_unfit_is_not_taken():
    seen = []

    def inspect(emission, target):
        seen.append(emission)
        return "spills" if len(seen) == 1 else None

    (emission,), (decision,) = emitted_under(inspect)
    assert emission is seen[1]
    assert decision.sentence.startswith("The default configuration spills, {")


def test_without_a_fit_configuration_the_default_stays():
    seen = []

    def inspect(emission, target):
        seen.append(emission)
        return "spills"

    (emission,), none = emitted_under(inspect)
    assert not none
    assert 1 < len(seen) <= 1 + MOST_CONFIGS
    first, last = (one.kernels[0].func for one in (seen[0], emission))
    assert structural_equal(first, last, map_free_vars=True)


def test_a_broken_claim_with_scalars_is_planned_again():
    def emission(group):
        raise ValueError("not today")

    with recording() as decisions:
        _, mod = compiled(Doubled, Toy("tanh+relu", emission))
    assert [d.code for d in decisions].count("claim_broken") == 1
    x, z = random(6, 4), random(3)
    np.testing.assert_allclose(run(mod, x, z)[0], np.maximum(np.tanh(x), 0), rtol=1e-5, atol=1e-6)
