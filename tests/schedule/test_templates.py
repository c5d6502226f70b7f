"""Templates of one's own next to those of the package."""

import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import transform
from tvm_fusion.core.contract import templates as registry
from tvm_fusion.core.contract.template import Claim, Emission, Refusal, Template
from tvm_fusion.core.contract.templates import register, registered, templates
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

CPU, GPU = (parse(text).tvm_target() for text in ("cpu", "cuda:sm_90a"))


class Tanh(Template):
    """Takes groups of tanh alone, for nothing."""

    name = "tanh"

    def claim(self, group, device):
        if any(op.title != "tanh" for op in group.members):
            return Refusal("not_tanh", "Only tanh is taken.")
        return Claim(self, group, launches=1, bytes=1, flops=1)

    def emit(self, claim, target):
        return Emission.one(claim.group.prim_func, claim.group)


class Named(Tanh):
    def __init__(self, name, is_fallback=False):
        self.name, self.is_fallback = name, is_fallback


@I.ir_module
class OneMap:
    @R.function
    def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
        with R.dataflow():
            a = R.tanh(x)
            R.output(a)
        return a


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    monkeypatch.setattr(registry._registry, "_added", [])


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "cuda"])
def test_a_registered_template_is_asked_for_every_target(target):
    before = templates(target)
    template = Tanh()
    with registered(template) as same:
        assert same is template
        assert templates(target) == (template, *before)
        assert registry.template("tanh", target) is template
    assert templates(target) == before
    with pytest.raises(KeyError):
        registry.template("tanh", target)


def test_its_kernel_is_in_the_module():
    with registered(Tanh()), CPU:
        mod = transform.Legalize()(OneMap)
        fused = transform.FuseOperators()(mod)
        marks = [
            f.attrs["tvm_fusion.template"]
            for f in fused.functions.values()
            if isinstance(f, relax.Function) and f.attrs and "Primitive" in f.attrs
        ]
        assert marks == ["tanh"]
        scheduled = transform.ScheduleKernels()(fused)
    relax.analysis.well_formed(scheduled)


def test_last_registered_first_and_fallbacks_last():
    first, second, last = Named("first"), Named("second"), Named("last", is_fallback=True)
    for template in (first, last, second):
        register(template)
    asked = templates(CPU)
    assert asked[:2] == (second, first)
    assert asked[-2:] == (last, registry._built_in["cpu"][-1])
    assert [t.is_fallback for t in asked] == sorted(t.is_fallback for t in asked)


def test_it_goes_when_the_body_fails():
    with pytest.raises(ZeroDivisionError), registered(Tanh()):
        _ = 1 / 0
    assert all(t.name != "tanh" for t in templates(CPU))


@pytest.mark.parametrize("name", ["tanh", "elementwise"])
def test_a_name_that_is_taken_is_refused(name):
    register(Tanh())
    with pytest.raises(UserError, match=f"there is a template '{name}' already; expected another"):
        register(Named(name))


@pytest.mark.parametrize("wrong", [Tanh, Named(""), Named(None), "tanh"])
def test_what_is_no_named_template_is_refused(wrong):
    with pytest.raises(UserError, match=r"cannot be registered; expected an instance .* a name;"):
        register(wrong)
