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
# # Inside an existing pipeline
#
# Projects that compile with TVM, such as MLC LLM, have a pipeline of their own: a list of passes in
# phases. This tutorial takes such a list and puts passes of this package into it, all of them or
# just one. The rest of the list stays, and so does whatever in the module is somebody else's.
#
# You should know what a TVM pass is; `tutorials/02_classes_and_planner` tells what our passes do.
# What the text says about results is checked by an `assert` in the cell below it. Everything runs
# on a CPU, also where kernels for a GPU are counted.
#
# Run it as a notebook, or as the program `python tutorials/03_inside_an_existing_pipeline.py`.

# %%
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import dlight
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.device import parse

cpu = parse("cpu").tvm_target()
gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host="llvm")

# %% [markdown]
# ## A model
#
# The second half of a transformer's layer: a residual sum, its normalisation, a gated pair of
# matrix products, a third product, another sum. The number of tokens `n` stays symbolic.


# %%
@I.ir_module
class Layer:
    @R.function
    def main(
        x: R.Tensor(("n", 128), "float32"),
        r: R.Tensor(("n", 128), "float32"),
        gain: R.Tensor((128,), "float32"),
        w_gate: R.Tensor((128, 256), "float32"),
        w_up: R.Tensor((128, 256), "float32"),
        w_down: R.Tensor((256, 128), "float32"),
    ):
        with R.dataflow():
            s = R.add(x, r)
            normal = R.nn.rms_norm(s, gain, axes=[-1], epsilon=1e-5)
            gate = R.nn.silu(R.matmul(normal, w_gate))
            up = R.matmul(normal, w_up)
            down = R.matmul(R.multiply(gate, up), w_down)
            result = R.add(s, down)
            R.output(result)
        return result


# %% [markdown]
# ## Somebody's pipeline
#
# Four phases, as they are usual: find library calls for sorting and sampling; lower operators to
# TensorIR and fuse them; schedule the kernels; lower the rest for TVM's virtual machine. The second
# and the third phase are what we are going to change, so they are parameters.


# %%
def pipeline(target, lower_and_fuse, schedule):
    """Build a pipeline for a target."""
    phases = {
        "dispatch": [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()],
        "lower and fuse": lower_and_fuse,
        "schedule": schedule,
        "virtual machine": [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ],
    }

    @tvm.transform.module_pass(opt_level=0)
    def run(mod, _context):
        with target:
            for passes in phases.values():
                mod = tvm.transform.Sequential(passes)(mod)
        return mod

    return run


def default_schedule(target):
    """List the schedule rules of DLight for a target."""
    if target.kind.name == "llvm":
        return [dlight.ApplyDefaultSchedule(dlight.cpu.GEMV())]
    rules = dlight.gpu
    kinds = (rules.Matmul, rules.GEMV, rules.Reduction, rules.GeneralReduction, rules.Fallback)
    return [dlight.ApplyDefaultSchedule(*(kind() for kind in kinds))]


def stock(target):
    """Build the pipeline with TVM's own passes."""
    fuse = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return pipeline(target, fuse, default_schedule(target))


# %% [markdown]
# ## Our passes in their places
#
# Three passes take the place of six:
#
# | TVM | here | why |
# |---|---|---|
# | `LegalizeOps` | `Legalize` | remembers which operator a function was |
# | `AnnotateTIROpPattern`, `FuseOps` | `FuseOperators` | mapping types from TensorIR, a plan |
# | `FuseTIR`, `ApplyDefaultSchedule` | `ScheduleKernels` | makes the kernels that were planned |
#
# They are ordinary TVM passes, and `FoldConstant` and all phases around them stay.


# %%
def ours(target):
    """Build the same pipeline with this package's passes."""
    fuse = [transform.Legalize(), relax.transform.FoldConstant(), transform.FuseOperators()]
    return pipeline(target, fuse, [transform.ScheduleKernels()])


# %% [markdown]
# Now count what either makes of the layer: launches, and bytes of tensors that pass between them,
# for 16 tokens. On a CPU a kernel is one loop nest over full tensors.
#
# The TIR pipeline is a choice of its own. The one called `"tvm_fusion"` lowers what TVM's default
# does, and takes kernels at thread level in the same module as well.

# %%
from tvm_fusion.deploy.count import count


def show(mod, pipelines, dims):
    """Print and return the counts of a module after each pipeline, for both targets."""
    counts = {}
    for where, target in (("CPU", cpu), ("GPU", gpu)):
        for who, make in pipelines.items():
            lowered = make(target)(mod)
            counted = count(lowered, target, dims=dims, tir_pipeline="tvm_fusion")
            counts[where, who] = counted
            between = f"{counted.intermediate_bytes:9,} bytes between them"
            print(f"{where} {who:13} {counted.kernels:2} kernels, {between}")
    return counts


counts = show(Layer, {"stock": stock, "ours": ours}, {"n": 16})
for where in ("CPU", "GPU"):
    assert counts[where, "ours"].kernels < counts[where, "stock"].kernels
    assert counts[where, "ours"].intermediate_bytes <= counts[where, "stock"].intermediate_bytes

# %% [markdown]
# And the results? Both pipelines against numpy in 64-bit floats, for several numbers of tokens.

# %%
rng = np.random.default_rng(0)
shapes = {"gain": (128,), "w_gate": (128, 256), "w_up": (128, 256), "w_down": (256, 128)}
weights = [rng.standard_normal(shape, np.float32) / 8 for shape in shapes.values()]


def reference(x, r):
    """Compute the layer in 64-bit floats."""
    gain, w_gate, w_up, w_down = (w.astype(np.float64) for w in weights)
    s = x.astype(np.float64) + r
    normal = s / np.sqrt((s**2).mean(-1, keepdims=True) + 1e-5) * gain
    gate = normal @ w_gate
    return s + (gate / (1 + np.exp(-gate)) * (normal @ w_up)) @ w_down


def compiled(mod, make):
    """Compile a module for the CPU by a pipeline, and return its main function."""
    built = tvm.compile(mod, cpu, relax_pipeline=make(cpu), tir_pipeline="tvm_fusion")
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    return lambda *inputs: main(*map(tvm.runtime.tensor, inputs)).numpy()


def check(make):
    """Compare the layer with numpy; return the largest error over the largest value."""
    layer = compiled(Layer, make)
    errors = []
    for n in (1, 7, 64):
        x, r = (rng.standard_normal((n, 128), np.float32) for _ in range(2))
        expected = reference(x, r)
        errors.append(np.abs(layer(x, r, *weights) - expected).max() / np.abs(expected).max())
    return max(errors)


for who, make in (("stock", stock), ("ours", ours)):
    error = check(make)
    print(f"{who:6} error {error:.1e}")
    assert error < 1e-5

# %% [markdown]
# ## One pass alone
#
# You may have schedules of your own and want no others. Then take the planner alone.
# `FuseOperators` leaves what TVM's `FuseOps` leaves: functions marked `Primitive`. TVM's `FuseTIR`
# merges these, and your schedules go on with the result.
#
# Legalisation can stay as well: mapping types are read from TensorIR, whoever wrote it. Here is a
# softmax written out, which is where DLight with a better plan does well on a GPU.


# %%
@I.ir_module
class Softmax:
    @R.function
    def main(x: R.Tensor((8, 128, 128), "float32")):
        with R.dataflow():
            shifted = R.subtract(x, R.max(x, axis=-1, keepdims=True))
            powers = R.exp(shifted)
            result = R.divide(powers, R.sum(powers, axis=-1, keepdims=True))
            R.output(result)
        return result


def only_planner(target):
    """Build the stock pipeline with only FuseOps replaced."""
    fuse = [
        relax.transform.LegalizeOps(),
        relax.transform.FoldConstant(),
        transform.FuseOperators(),
        relax.transform.FuseTIR(),
    ]
    return pipeline(target, fuse, default_schedule(target))


pipelines = {"stock": stock, "only planner": only_planner, "ours": ours}
counts = show(Softmax, pipelines, {})
assert counts["GPU", "only planner"].kernels == counts["GPU", "ours"].kernels == 1
assert counts["GPU", "stock"].kernels > 1

# %% [markdown]
# On the CPU nothing is won, for `FuseTIR` writes the loops of a group one after the other, and
# DLight does not join them there: our layer has one kernel more than with stock TVM. On the GPU it
# has as few as with all stages. A group is planned because one of our templates makes one kernel of
# it; other schedules may need several. So if yours do not know what to do with such groups, take
# `ScheduleKernels` as well. The results are right in any case.

# %%
counts = show(Layer, pipelines, {"n": 16})
assert counts["GPU", "ours"].kernels < counts["GPU", "stock"].kernels
assert counts["GPU", "ours"].kernels <= counts["GPU", "only planner"].kernels

error = check(only_planner)
print(f"error {error:.1e}")
assert error < 1e-5

# %% [markdown]
# ## What is not ours stays
#
# A module may hold things that others have decided about. Here are two: a PrimFunc that somebody
# has scheduled, with TVM's mark `tirx.is_scheduled`, and a call of a packed function, such as a
# library's. Our operators stand before, between and behind them.


# %%
@tvm.register_global_func("their_library.clamp")
def clamp(source, result):
    """Stand for a library: write the source, clamped to a half, into the result."""
    result.copyfrom(np.clip(source.numpy(), -0.5, 0.5))


@I.ir_module
class Mixed:
    @T.prim_func(private=True, s_tir=True)
    def their_kernel(
        a: T.Buffer((T.int64(8), T.int64(64)), "float32"),
        b: T.Buffer((T.int64(8), T.int64(64)), "float32"),
    ):
        T.func_attr({"tirx.is_scheduled": True})
        for i in T.parallel(T.int64(8)):
            for j in T.vectorized(T.int64(64)):
                with T.sblock("twice"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    b[vi, vj] = a[vi, vj] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8, 64), "float32")):
        cls = Mixed
        with R.dataflow():
            a = R.nn.relu(R.add(x, R.const(0.5, "float32")))
            b = R.call_tir(cls.their_kernel, (a,), out_ty=R.Tensor((8, 64), "float32"))
            c = R.tanh(R.negative(b))
            d = R.call_dps_packed("their_library.clamp", (c,), out_ty=R.Tensor((8, 64), "float32"))
            e = R.exp(R.multiply(d, b))
            R.output(e)
        return e


def fused(mod, target):
    """Apply our three passes and nothing else."""
    passes = [transform.Legalize(), transform.FuseOperators(), transform.ScheduleKernels()]
    with target:
        return tvm.transform.Sequential(passes)(mod)


after = fused(Mixed, cpu)
for binding in after["main"].body.blocks[0].bindings:
    print(binding.var.name, "=", binding.value.op.name, binding.value.args[0])

tvm.ir.assert_structural_equal(after["their_kernel"], Mixed["their_kernel"])
calls = [str(binding.value.op.name) for binding in after["main"].body.blocks[0].bindings]
assert calls.count("relax.call_dps_packed") == 1
assert len(calls) == 5

# %%
x = rng.standard_normal((8, 64), np.float32)
b = 2 * np.maximum(x.astype(np.float64) + 0.5, 0)
expected = np.exp(np.clip(np.tanh(-b), -0.5, 0.5) * b)
for who, make in pipelines.items():
    error = np.abs(compiled(Mixed, make)(x) - expected).max()
    print(f"{who:13} error {error:.1e}")
    assert error < 1e-5

# %% [markdown]
# A third thing: functions for an external library, which TVM's `FuseOpsByPattern` makes. They carry
# the attributes `Composite` and `Codegen`, and wait for a code generator of their own.

# %%
from tvm.relax.dpl import is_op, wildcard

pattern = is_op("relax.matmul")(wildcard(), wildcard())
split = relax.transform.FuseOpsByPattern([("their_library.matmul", pattern)], annotate_codegen=True)
before = split(Layer)
after = fused(before, cpu)


def external(mod):
    """List the functions of a module that are for an external library."""
    return {
        gvar.name_hint: func
        for gvar, func in mod.functions.items()
        if func.attrs and "Codegen" in func.attrs
    }


print(", ".join(external(before)))
assert external(before)
assert external(after).keys() == external(before).keys()
for name, func in external(before).items():
    tvm.ir.assert_structural_equal(external(after)[name], func)

# %% [markdown]
# The same holds for functions that are `Primitive` already, calls that work in place, objects such
# as a paged cache of keys and values, and other functions of the module.
#
# ## Where to go from here
#
# * `relax.get_pipeline("tvm_fusion", target=target)` is our whole list, ready to use.
# * `tutorials/04_write_a_template` teaches the planner a kernel that it does not know.
