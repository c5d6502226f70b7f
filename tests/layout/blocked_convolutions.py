"""A template that takes convolutions only where their images are blocked, and small networks."""

import numpy as np
import tvm
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.contract.template import Claim, Emission, Refusal, Template
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.device import parse
from tvm_fusion.program.layouts import is_layout_map
from tvm_fusion.program.stage import Unstructured
from tvm_fusion.schedule.single.rules import rules
from tvm_fusion.schedule.stage.guard import schedule_function


class BlockedConvolution(Template):
    """Almost free where all images of a group with a convolution have a layout.

    Parameters
    ----------
    refuses : callable
        Groups that it does not take besides.
    """

    name = "blocked_convolution"

    def __init__(self, refuses=lambda group: False):
        self.refuses = refuses

    def claim(self, group, device):
        convolutions = [op for op in group.members if op.title.startswith("conv")]
        images = [v for v in (*group.inputs, *group.outputs) if not v.is_parameter]
        if len(convolutions) != 1 or not any(is_layout_map(op.func) for op in group.members):
            return Refusal("not_mine", "It is no convolution.")
        rank = len(convolutions[0].results[0].shape)
        plain = [v for v in images if len(v.shape) == rank and int(v.shape[1]) > 4]
        if any(int(v.shape[2]) * int(v.shape[3]) > 1 for v in plain) or self.refuses(group):
            return Refusal("not_mine", "It is in the layout of the graph.")
        try:
            _ = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        return Claim(self, group, launches=1, bytes=1, flops=1)

    def emit(self, claim, target):
        func = claim.group.program.prim_func()
        func = schedule_function(claim.group.title, func, target, *rules(target))
        return Emission.one(func, claim.group)


class Network:
    """A network in Relax, its weights constants drawn from a seed."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.builder = relax.BlockBuilder()

    def weight(self, *shape):
        values = self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        return relax.const(values.astype("float32"))

    def conv(self, x, channels, size=3, stride=1, groups=1, relu=True):
        n = self.builder.normalize
        data = int(x.ty.shape.values[1])
        weight = self.weight(channels, data // groups, size, size)
        options = {"strides": stride, "padding": size // 2, "groups": groups}
        y = n(relax.op.nn.conv2d(x, weight, **options))
        y = n(relax.op.add(y, self.weight(1, channels, 1, 1)))
        return n(relax.op.nn.relu(y)) if relu else y

    def module(self, shape, body):
        """Write ``main`` as ``body(network, x)``."""
        x = relax.Var("x", relax.TensorType(shape, "float32"))
        with self.builder.function("main", [x]):
            with self.builder.dataflow():
                y = self.builder.emit_output(self.builder.normalize(body(self, x)))
            self.builder.emit_func_output(y)
        return self.builder.get()


def planned(mod, template=None, target="cpu"):
    """Run the stages up to the layouts with the template."""
    with parse(target).tvm_target(), registered(template or BlockedConvolution()):
        return transform.PlanLayout()(transform.FuseOperators()(transform.Legalize()(mod)))


def run(mod, x, template=None):
    """Compile with the template and run."""
    target = parse("cpu").tvm_target()
    with registered(template or BlockedConvolution()):
        built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def run_stock(mod, x):
    """Compile with TVM's own pipeline, and run."""
    built = tvm.compile(mod, "llvm")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
