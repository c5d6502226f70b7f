# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Mapping types and the planner
#
# A kernel reads tensors from memory, computes, and writes tensors back. Two operators that share a
# kernel save the tensor between them. Which operators may share one, and which should? This
# tutorial follows the planner through three small graphs: a softmax written out, a residual block,
# and two matrix products in a row, which stay apart.
#
# You need to know Python, and what softmax and layer normalisation compute. What the text says
# about results is checked by an `assert` in the cell below it. Everything runs on a CPU, also where
# kernels for a GPU are counted.
#
# Run it as a notebook, or as the program `python tutorials/02_classes_and_planner.py`.

# %%
import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_fusion
from tvm_fusion import transform
from tvm_fusion.device import parse

target = parse("cpu").tvm_target()

# %% [markdown]
# ## A softmax, written out
#
# Exporters often write a softmax as its five steps. In attention, a scale and a mask come first.
# Seven operators, each of which would be one pass over memory.


# %%
@I.ir_module
class Softmax:
    @R.function
    def main(scores: R.Tensor((8, 128, 128), "float32"), mask: R.Tensor((128, 128), "float32")):
        with R.dataflow():
            scaled = R.multiply(scores, R.const(0.125, "float32"))
            masked = R.add(scaled, mask)
            largest = R.max(masked, axis=-1, keepdims=True)
            shifted = R.subtract(masked, largest)
            powers = R.exp(shifted)
            total = R.sum(powers, axis=-1, keepdims=True)
            weights = R.divide(powers, total)
            R.output(weights)
        return weights


# %% [markdown]
# ## Mapping types
#
# `Legalize` turns each operator into a TensorIR function: loops over index expressions. From these
# the *mapping type* of an operator is read: how elements of its result depend on elements of its
# operands. There are five, after the DNNFusion paper (Niu et al., PLDI 2021):
#
# * *One-to-One*: an element of the result needs the element at the same place, as in `exp`.
# * *One-to-Many*: an element of the operand serves many of the result, as when a vector is
#   broadcast.
# * *Many-to-Many*: many serve many, as in sums and matrix products.
# * *Reorganize*: same elements in the same order under another shape, as in `reshape`.
# * *Shuffle*: same elements at other places, as in a transpose.
#
# `Graph` holds the operators of one dataflow block. The mapping type of an operator is the most
# complex one over its operands; constants do not count, for nobody has to compute them again.

# %%
from tvm_fusion.ecg.graph import Graph


def operators(mod):
    """List the operators of a module's main function, for the CPU."""
    with target:
        mod = transform.Legalize()(mod)
    main = mod["main"]
    return Graph(mod, main, main.body.blocks[0]).operators


def show(found):
    """Print each operator with its mapping type, and with that for each of its operands."""
    for op in found:
        of_operands = ", ".join(f"{v.name}: {op.operand_type(v).value}" for v in op.tensors)
        print(f"{op.name:8} = {op.title:10} {op.type.value:13} ({of_operands})")


found = operators(Softmax)
show(found)

types = {op.name: op.type.value for op in found}
assert types["scaled"] == types["powers"] == "One-to-One"
assert types["largest"] == types["total"] == "Many-to-Many"
assert types["weights"] == "One-to-Many"  # one total serves a whole row

# %% [markdown]
# No table of operator names is asked. A function that you write by hand is classified as well, by
# its index expressions. If they cannot be read the type is *Opaque*, with a reason, and nothing
# grows around such an operator.

# %%
from tvm_fusion.ecg.mapping_types.classify import classify


@T.prim_func(s_tir=True)
def backwards(a: T.Buffer((5, 7), "float32"), b: T.Buffer((5, 7), "float32")):
    for i, j in T.grid(5, 7):
        with T.sblock("any_name"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, 6 - vj]


@T.prim_func(s_tir=True)
def running_sum(a: T.Buffer((7,), "float32"), b: T.Buffer((7,), "float32")):
    for i in range(7):
        with T.sblock("any_name"):
            vi = T.axis.spatial(7, i)
            b[vi] = a[vi] + T.if_then_else(vi > 0, b[vi - 1], T.float32(0))


for func in (backwards, running_sum):
    print(classify(func).type.value, classify(func).reason)
assert classify(backwards).type.value == "Shuffle"
assert classify(running_sum).type.value == "Opaque"
assert "recurrence" in classify(running_sum).reason

# %% [markdown]
# ## The mapping table
#
# From the mapping types of a producer and its consumer, the paper's table tells whether fusing
# them pays: always (`fuse_through`), when the numbers say so (`fuse_depend`), or never
# (`fuse_break`). It also tells the type of the fused operator, with which growth goes on.

# %%
from tvm_fusion.ecg.mapping_types.table import MappingType, Relation, combine

five = [kind for kind in MappingType if kind is not MappingType.OPAQUE]
print(" " * 14 + "".join(f"{kind.value:>14}" for kind in five))
for first in five:
    cells = [combine(first, second) for second in five]
    print(f"{first.value:14}" + "".join(f"{cell.relation.value:>14}" for cell in cells))

apart = [(a, b) for a in five for b in five if combine(a, b).relation is Relation.BREAK]
both = MappingType.MANY_TO_MANY
assert apart == [(MappingType.ONE_TO_MANY, both), (both, both)]

# %% [markdown]
# Two cells of 25 say never. One of them stands between the maximum and the sum of a softmax: both
# are Many-to-Many. How do they get into one kernel all the same?
#
# ## Planning
#
# Besides the table there are *templates*: each is one way of making kernels. A template may
# propose a set of operators, and a group of operators is legal only if a template claims it, that
# is, promises to make its kernel. The planner takes proposals first, those that save most before
# others. Then it starts from One-to-One operators and grows over their neighbours by the table.
#
# `plan_module` gives a plan for every dataflow block and changes nothing.

# %%
from tvm_fusion.fusion.fuse import plan_module


def plan_of(mod):
    """Plan a module with one dataflow block, for the CPU."""
    with target:
        (plan,) = plan_module(transform.Legalize()(mod), target).values()
    return plan


def show_plan(plan):
    """Print the groups, and the decision about every edge."""
    for claim in plan.claims:
        print(f"[{claim.template.name}] {claim.group.title}")
    for decision in plan.decisions:
        edge = f"{decision.producer} -> {decision.consumer}"
        print(f"{edge:20} {decision.verdict}, {decision.code}: {decision.sentence}")


plan = plan_of(Softmax)
show_plan(plan)

(claim,) = plan.claims
assert claim.template.name == "rows"
assert len(claim.group) == 7
assert all(decision.verdict == "accepted" for decision in plan.decisions)

# %% [markdown]
# The template `rows` knows that several reductions over the same rows fit into one pass over each
# row, and has proposed them. A claim holds figures, by which the planner compares alternatives:
# how many launches, how many bytes of memory traffic, how much arithmetic.

# %%
alone = sum(sum(v.bytes for v in {*op.tensors, *op.results}) for op in found)
print(f"launches {claim.launches}, {claim.bytes / 1e6:.1f} MB, {claim.flops / 1e6:.1f} MFLOP")
print(f"one by one the operators would move {alone / 1e6:.1f} MB")
assert claim.launches == 1
assert claim.bytes < alone / 4

# %% [markdown]
# ## Kernels before and after
#
# Is the promise kept? `count` runs through a compiled module and counts launches, and the bytes of
# the tensors that pass from one to the next. `count_stock` does so for TVM's default pipeline. On a
# CPU a kernel is one loop nest over full tensors. On a GPU it is one launch; counting needs no GPU.

# %%
from tvm_fusion.deploy.count import count, count_stock

gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host="llvm")


def compare(mod):
    """Print and return what stock TVM and this package make of a module, per target."""
    counts = {}
    for name, where in (("CPU", target), ("GPU", gpu)):
        ours = relax.get_pipeline("tvm_fusion", target=where)(mod)
        for who, counted in (
            ("stock", count_stock(mod, where)),
            ("ours", count(ours, where, tir_pipeline="tvm_fusion")),
        ):
            counts[name, who] = counted
            moved = f"{counted.intermediate_bytes:9,} bytes between them"
            print(f"{name} {who:5}: {counted.kernels} kernels, {moved}")
    return counts


counts = compare(Softmax)
assert counts["CPU", "ours"].kernels == counts["GPU", "ours"].kernels == 1
assert counts["CPU", "ours"].intermediate_bytes == 0
assert counts["GPU", "stock"].kernels > 1
assert counts["CPU", "stock"].kernels > 1

# %% [markdown]
# Fewer kernels are worth nothing if the numbers are wrong. The reference is numpy in 64-bit floats.


# %%
def run(mod, *inputs):
    """Compile a module for the CPU and run its main function."""
    built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    result = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    tensors = [result] if hasattr(result, "numpy") else list(result)
    return [tensor.numpy() for tensor in tensors]


def error(actual, expected):
    """Compute the largest difference over the largest value."""
    return np.abs(actual - expected).max() / np.abs(expected).max()


rng = np.random.default_rng(0)
scores = 10 * rng.standard_normal((8, 128, 128), np.float32)
mask = np.where(np.tri(128, dtype=bool), 0, -1e9).astype(np.float32)

masked = scores.astype(np.float64) * 0.125 + mask
powers = np.exp(masked - masked.max(-1, keepdims=True))
expected = powers / powers.sum(-1, keepdims=True)

(weights,) = run(Softmax, scores, mask)
print(f"error {error(weights, expected):.1e}")
assert error(weights, expected) < 1e-6

# %% [markdown]
# ## A residual block
#
# In a transformer the sum `s` of two branches is normalised, and it is also needed later: two
# outputs. TVM's own fusion makes a kernel with one output only, so `s` is written by one kernel and
# read again by the next. Here one kernel writes both.


# %%
@I.ir_module
class Residual:
    @R.function
    def main(
        x: R.Tensor((128, 256), "float32"),
        r: R.Tensor((128, 256), "float32"),
        gain: R.Tensor((256,), "float32"),
        shift: R.Tensor((256,), "float32"),
    ):
        with R.dataflow():
            s = R.add(x, r)
            y = R.nn.layer_norm(s, gain, shift, axes=[-1])
            R.output(s, y)
        return s, y


show(operators(Residual))
plan = plan_of(Residual)
show_plan(plan)

(claim,) = plan.claims
assert [value.name for value in claim.group.outputs] == ["s", "y"]

# %%
counts = compare(Residual)
assert counts["CPU", "ours"].kernels == counts["GPU", "ours"].kernels == 1
assert counts["GPU", "stock"].kernels == 2

x, r = (rng.standard_normal((128, 256), np.float32) for _ in range(2))
gain, shift = (rng.standard_normal(256, np.float32) for _ in range(2))
s = x.astype(np.float64) + r
normal = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5)

actual_s, actual_y = run(Residual, x, r, gain, shift)
print(f"errors {error(actual_s, s):.1e} and {error(actual_y, normal * gain + shift):.1e}")
assert error(actual_s, s) < 1e-6
assert error(actual_y, normal * gain + shift) < 1e-5

# %% [markdown]
# ## What stays apart
#
# Two matrix products with a ReLU between them. The ReLU goes along with the first product: an
# epilogue costs nothing. But an element of the second result needs a whole row of the first one.
# To compute that row again for every element would cost far more than to write it down. This is the
# cell of the table that says never (red in the paper), and no template proposes the two together.


# %%
@I.ir_module
class TwoProducts:
    @R.function
    def main(
        x: R.Tensor((64, 256), "float32"),
        v: R.Tensor((256, 512), "float32"),
        w: R.Tensor((512, 256), "float32"),
    ):
        with R.dataflow():
            a = R.matmul(x, v)
            h = R.nn.relu(a)
            y = R.matmul(h, w)
            R.output(y)
        return y


plan = plan_of(TwoProducts)
show_plan(plan)

assert [claim.group.title for claim in plan.claims] == ["matmul + relu", "matmul"]
(refused,) = [decision for decision in plan.decisions if decision.verdict == "refused"]
assert (refused.producer, refused.consumer, refused.code) == ("h", "y", "mapping_red")

# %%
counts = compare(TwoProducts)
assert counts["CPU", "ours"].kernels == counts["GPU", "ours"].kernels == 2

x, v, w = (rng.standard_normal(n, np.float32) for n in ((64, 256), (256, 512), (512, 256)))
expected = np.maximum(x.astype(np.float64) @ v, 0) @ w
(y,) = run(TwoProducts, x, v, w)
print(f"error {error(y, expected):.1e}")
assert error(y, expected) < 1e-5

# %% [markdown]
# ## All of it at once
#
# `tvm_fusion.explain`, or `tvm-fusion explain model.onnx` in a shell, shows a whole model: the
# groups with their figures, every edge that is not fused with the reason, and the kernels and bytes
# next to those of stock TVM.

# %%
explanation = tvm_fusion.explain(TwoProducts, "cpu")
explanation.show()

assert explanation.counts.kernels == 2
assert [edge.code for edge in explanation.refused] == ["mapping_red"]

# %% [markdown]
# ## Where to go from here
#
# * `tutorials/03_inside_an_existing_pipeline` puts the planner into a pipeline of your own.
# * `tutorials/04_write_a_template` teaches the planner a kernel that it does not know.
