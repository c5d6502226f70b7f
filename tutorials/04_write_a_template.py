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
# # Write a template
#
# A *template* is one way of making kernels. It says which groups of operators it can compute, at
# what cost, and writes their code. A group of operators is legal only if a template claims it, so
# whoever teaches this package a new kernel writes a template and changes nothing else.
#
# This one computes running sums. You should have read `tutorials/02_classes_and_planner` first, and
# not be afraid of loops that are built as data. What the text says about results is checked by an
# `assert` in the cell below it.
#
# Run it as a notebook, or as the program `python tutorials/04_write_a_template.py`.

# %%
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.fusion.fuse import plan_module

target = parse("cpu").tvm_target()

# %% [markdown]
# ## What is missing
#
# How far is each value of a signal from the mean of all values so far? Three operators: a running
# sum, a division by 1, 2, 3 and so on, a subtraction.


# %%
@I.ir_module
class Drift:
    @R.function
    def main(signals: R.Tensor((37, 1000), "float32"), counts: R.Tensor((1000,), "float32")):
        with R.dataflow():
            total = R.cumsum(signals, axis=-1)
            mean = R.divide(total, counts)
            drift = R.subtract(signals, mean)
            R.output(drift)
        return drift


def plan_of(mod):
    """Plan a module, print its groups and decisions, and return the plan."""
    with target:
        (plan,) = plan_module(transform.Legalize()(mod), target).values()
    for claim in plan.claims:
        print(f"[{claim.template.name}] {claim.group.title}")
    for decision in plan.decisions:
        edge = f"{decision.producer} -> {decision.consumer}"
        print(f"{edge:16} {decision.verdict}, {decision.code}: {decision.sentence}")
    return plan


plan = plan_of(Drift)
assert [c.template.name for c in plan.claims] == ["prefix_sum", "elementwise"]

# %% [markdown]
# In a running sum each element needs the one before it. None of the five mapping types says that,
# so `cumsum` is Opaque. The template `prefix_sum` takes it alone, and `total` goes through memory.
# But one could well keep a row of sums close by and go on with it at once. That is what we write:
#
#     for every row, in parallel:
#         compute the sums of the row, one after the other, into a small buffer
#         compute the row of the result from the buffer
#
# ## Claim
#
# A claim is a promise, a `Refusal` a code and a sentence that says why not. `claim` is asked often
# while the planner looks for good groups, so it must be quick; and it must be right, for what is
# claimed has to be emitted. A `Group` has its `members`, operators in order, and its `inputs` and
# `outputs`, the tensors that go in and out. An operator has the record of what it was in Relax.
#
# Reasons to refuse: it is not a running sum with something behind it; it does not run along the
# rows; a row does not fit into the buffer; an operator behind it needs other sums than its own.

# %%
from tvm_fusion.core.contract.template import Claim, Emission, Refusal, Template
from tvm_fusion.core.tir.loops import constant
from tvm_fusion.ecg.mapping_types.table import MappingType

LONGEST = 4096  # elements of a row: 16 KB of floats, half of a usual level-1 cache


def refusal(group, device):
    """Say why a group is not for us; None if it is."""
    scan, *rest = group.members
    if device.kind != "llvm" or scan.title != "cumsum" or not rest:
        return Refusal("not_mine", "It is no running sum with an epilogue, for a CPU.")
    (source,) = scan.tensors
    last = len(source.shape) - 1
    if scan.record.attrs["axis"] not in (-1, last) or scan.record.attrs["exclusive"]:
        return Refusal("not_along_rows", f"{scan.name} does not run along the rows.")
    length = constant(source.shape[-1])  # None for a symbolic one
    if length is None or length > LONGEST:
        sentence = f"{scan.name} has rows of {length or source.shape[-1]}, at most {LONGEST} fit."
        return Refusal("row_too_long", sentence)
    for op in rest:
        for value in op.tensors:
            inside = value.producer in group.members
            if inside and op.operand_type(value) is not MappingType.ONE_TO_ONE:
                sentence = f"{op.name} needs other elements of {value.name} than its own."
                return Refusal("not_elementwise", sentence)
    if len(group.outputs) > 1 or scan.results[0] in group.outputs:
        return Refusal("several_outputs", f"{group.outputs[0].name} is needed elsewhere, too.")
    return None


# %% [markdown]
# ## Emit
#
# What stands behind the sum may be any chain of elementwise operators. We need not know them: a
# group's `program` tells any element of its result as a scalar expression over its inputs. Here is
# the program of everything but the sum.

# %%
from tvm_fusion.program.group import Group

scan, *rest = plan.graph.operators
epilogue = Group(rest)
i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
print([value.name for value in epilogue.inputs])
print(epilogue.program.element(0, [i, j]))
assert str(epilogue.program.element(0, [i, j])) == "signals[i, j] - total[i, j] / counts[j]"

# %% [markdown]
# The kernel is made of statements, built with a few helpers: `loop` writes a `for` around what a
# function returns for its variable, `block` owns a buffer, `sequence` puts one statement behind
# another. `substitute` replaces the load of `total` by a load of the buffer, and the kernel's
# parameters are the inputs and then the outputs of the group.

# %%
from tvm_fusion.core.tir.loops import (
    block,
    coordinates,
    index,
    local,
    loop,
    product,
    sequence,
    substitute,
)


def scan_kernel(group):
    """Write the kernel of a group that was claimed."""
    scan, *rest = group.members
    epilogue = Group(rest)
    program = epilogue.program
    buffers = dict(zip(epilogue.inputs, program.inputs, strict=True))
    total, (value,) = buffers.pop(scan.results[0]), scan.tensors
    source = buffers.setdefault(value, tirx.decl_buffer(value.shape, value.dtype, "source"))
    result = program.outputs[0]
    *outer, length = value.shape
    sums = local("sums", [length], str(total.dtype))

    def sum_at(place, column):
        term = tirx.BufferLoad(source, [*place, column]).astype(str(total.dtype))
        if not isinstance(column, tirx.IntImm):
            term = tirx.BufferLoad(sums, [column - 1]) + term
        return tirx.BufferStore(sums, term, [column])

    def result_at(place, column):
        def from_buffer(load):
            return tirx.BufferLoad(sums, [column]) if load.source.same_as(total) else load

        element = program.element(0, [*place, column])
        return tirx.BufferStore(result, substitute(element, {}, from_buffer), [*place, column])

    def row(number):
        place = coordinates(number, outer)
        first = sum_at(place, index(0))
        others = loop("j", index(length) - 1, lambda j: sum_at(place, j + 1))
        results = loop("k", length, lambda k: result_at(place, k))
        return block("row", sequence([first, others, results]), [sums])

    rows = loop("row", product(outer), row, tirx.ForKind.PARALLEL)
    params = [*(buffers[v] for v in group.inputs), *group.scalars, result]
    func = tirx.PrimFunc(params, block("root", rows))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True})


kernel = scan_kernel(Group([scan, *rest]))
print(kernel)

# %% [markdown]
# ## The template
#
# The class puts both together. A claim holds figures, by which the planner compares it with other
# ways to compute the same. Nobody else claims this group, so anything near the truth will do.
#
# `propose` is needed because growth follows the mapping table, where Opaque operators stand alone.
# A template may propose sets of operators that it knows to go together. It is enough to name the
# sum and one reader; once these are a group, growth adds to it what the template claims.


# %%
class Scan(Template):
    """Running sums along rows with an elementwise epilogue, on CPUs."""

    name = "scan"

    def claim(self, group, device):
        reason = refusal(group, device)
        if reason is not None:
            return reason
        flops = sum(op.flops for op in group.members)
        return Claim(self, group, launches=1, bytes=group.bytes, flops=flops, parallelism=32)

    def emit(self, claim, target):
        return Emission.one(scan_kernel(claim.group), claim.group)

    def propose(self, graph, device):
        for op in graph.operators:
            if op.title == "cumsum":
                for reader in graph.successors(op):
                    yield op, reader


# %% [markdown]
# `registered` makes the template known for the body of a `with` statement. Beside it in the module
# there is `register`, which does so for good.

# %%
from tvm_fusion.core.contract.templates import registered

with registered(Scan()):
    plan = plan_of(Drift)
(claim,) = plan.claims
assert claim.template.name == "scan"
assert claim.group.title == "cumsum + divide + subtract"

# %% [markdown]
# ## Does it pay, and is it right?
#
# One kernel instead of two, and no bytes between kernels. The judge is numpy in 64-bit floats.

# %%
from tvm_fusion.deploy.count import count


def run(mod, *inputs):
    """Compile for the CPU, print kernels and bytes, run, and return the result."""
    with target:
        lowered = relax.get_pipeline("tvm_fusion", target=target)(mod)
    counted = count(lowered, target, tir_pipeline="tvm_fusion")
    print(f"{counted.kernels} kernels, {counted.intermediate_bytes:,} bytes between them")
    built = tvm.compile(lowered, target, tir_pipeline="tvm_fusion")
    result = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return counted, result.numpy()


signals = np.random.default_rng(0).standard_normal((37, 1000), np.float32)
numbers = np.arange(1, 1001, dtype=np.float32)
expected = signals - np.cumsum(signals.astype(np.float64), -1) / numbers

before, without = run(Drift, signals, numbers)
with registered(Scan()):
    after, result = run(Drift, signals, numbers)
print(f"errors {np.abs(without - expected).max():.1e} and {np.abs(result - expected).max():.1e}")

assert (before.kernels, after.kernels) == (2, 1)
assert (before.intermediate_bytes, after.intermediate_bytes) == (signals.nbytes, 0)
assert np.abs(without - expected).max() < 1e-4
assert np.abs(result - expected).max() < 1e-4

# %% [markdown]
# ## Refusals
#
# A refusal shows up where the planner would have grown the group. Say the drift is turned around
# before it goes out. `flip` needs other elements than its own, so the kernel ends before it, and
# the decision about that edge holds our sentence.


# %%
@I.ir_module
class Reversed:
    @R.function
    def main(signals: R.Tensor((37, 1000), "float32"), counts: R.Tensor((1000,), "float32")):
        with R.dataflow():
            total = R.cumsum(signals, axis=-1)
            mean = R.divide(total, counts)
            turned = R.flip(mean, axis=1)
            R.output(turned)
        return turned


with registered(Scan()):
    plan = plan_of(Reversed)
    _, result = run(Reversed, signals, numbers)
assert [c.template.name for c in plan.claims] == ["scan", "elementwise"]
assert "turned needs other elements of mean than its own." in plan.decisions[-1].sentence
assert np.abs(result - (signals - expected)[:, ::-1]).max() < 1e-4

# %% [markdown]
# A template can also be asked directly. A row of 5000 elements is more than our buffer holds.

# %%
from tvm_fusion.ecg.graph import Graph


def rectified(length):
    """Make a module: a running sum over rows of some length, and a ReLU."""
    builder = relax.BlockBuilder()
    signals = relax.Var("signals", relax.TensorType((37, length), "float32"))
    with builder.function("main", [signals]):
        with builder.dataflow():
            total = builder.emit(relax.op.cumsum(signals, axis=-1), "total")
            result = builder.emit_output(relax.op.nn.relu(total))
        builder.emit_func_output(result)
    return builder.get()


def answer(length):
    """Ask the template for the sum and the ReLU over rows of some length."""
    with target:
        mod = transform.Legalize()(rectified(length))
    operators = Graph(mod, mod["main"], mod["main"].body.blocks[0]).operators
    return Scan().claim(Group(operators), parse("cpu").device)


refused = answer(5000)
print(f"{refused.code}: {refused.sentence}")
assert refused.code == "row_too_long"
assert isinstance(answer(4096), Claim)

# %% [markdown]
# ## A broken promise
#
# A template that claims what it cannot emit is wrong, but no build is lost to it. The claim is
# recorded as broken and struck out, its operators are planned again without it, and other templates
# make their kernels. `recording` collects what the stages have to say meanwhile.

# %%
from tvm_fusion.core.decisions import recording


class Careless(Scan):
    """Claims what it cannot emit."""

    name = "careless"

    def emit(self, claim, target):
        raise NotImplementedError("nobody wrote this kernel yet")


with registered(Careless()), recording() as decisions:
    counted, result = run(rectified(1000), signals)
(broken,) = [decision for decision in decisions if decision.code == "claim_broken"]
print(f"{broken.verdict}, {broken.code}: {broken.sentence}")

assert "nobody wrote this kernel yet" in broken.sentence
assert counted.kernels == 2
expected = np.maximum(np.cumsum(signals.astype(np.float64), -1), 0)
assert np.abs(result - expected).max() < 1e-4

# %% [markdown]
# ## In the explanation of a model
#
# `tvm_fusion.explain` knows the new template like any other.

# %%
with registered(Scan()):
    explanation = tvm_fusion.explain(Drift, "cpu")
explanation.show()

(group,) = explanation.groups
assert group.template == "scan"
assert explanation.counts.kernels == 1
assert explanation.stock.kernels > 1

# %% [markdown]
# ## Where to go from here
#
# * `tvm_fusion/core/contract/template.py` has the whole contract: several kernels with workspaces
#   between them, and functions that pack a constant operand at compile time.
# * `tvm_fusion/schedule/elementwise` is the simplest of the package's own templates, `rows` the one
#   that does most.
# * A template for a GPU binds its loops to blocks and threads; `threads`, next to `loop`, does
# that.
