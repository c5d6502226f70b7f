"""A group that a template refuses, with the code and the words of the answer."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from group_kernels import CUDA, group
from tvm import relax

from tvm_fusion.core.contract.template import Template
from tvm_fusion.device import Device, parse
from tvm_fusion.program.group import Group
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant

CPU = parse("cpu:cascadelake")  # its instructions are what some refusals are about


@dataclass(frozen=True)
class Case:
    """A group that a template refuses, and what its sentence must say.

    ``layout`` is that of the inputs and outputs without constants; none is the graph's. ``limits``
    are what the device has instead of a real one's.
    """

    code: str
    template: Template
    params: list[relax.Var]
    body: Callable[..., object]
    says: tuple[str, ...]
    on_gpu: bool = field(default=False)
    layout: Layout | None = field(default=None)
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def spec(self):
        return CUDA if self.on_gpu else CPU

    @property
    def device(self) -> Device:
        return replace(self.spec.device, **self.limits)

    @property
    def group(self) -> Group:
        members = group(self.params, self.body, self.spec)
        if self.layout is None:
            return members
        images = [v for v in (*members.inputs, *members.outputs) if v.constant is None]
        return variant(members, dict.fromkeys(images, self.layout)).group
