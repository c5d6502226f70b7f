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

# %% [markdown]
# # Profile a model
#
# Where does the time of a model go, and is a kernel as fast as it could be? `tvm-fusion profile
# build/model`, or `Executable.profile`, times every kernel of an artifact and puts next to it what
# the planner expected, how much it computes and moves, and what this machine can do. It needs TVM's
# runtime alone, so it works where the artifact is deployed.
#
# What the text says about results is checked by an `assert` in the cell below it. Times are printed
# and not checked: they are another machine's every time.
#
# Run it as a notebook, or as the program `python tutorials/09_profile_a_model.py`.

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx

import tvm_fusion
from tvm_fusion.cli.commands.profile import trace
from tvm_fusion.deploy.runtime.profile.result import Profile

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)

# %% [markdown]
# ## A model and its artifact
#
# Two products with something elementwise between them, and a softmax at the end. The batch stays
# open: one artifact for 1 to 512 rows. `tvm_fusion.progress` shows what a compilation is doing if
# it takes longer than two seconds; this one hardly does.

# %%
HIDDEN = 512
model = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]>
    mlp (float[batch, 256] x) => (float[batch, 128] y) {
        h = MatMul(x, up)  s = Sigmoid(h)  g = Mul(h, s)
        z = MatMul(g, down)  y = Softmax(z)
    }"""
)
generator = np.random.default_rng(0)
for name, shape in (("up", (256, HIDDEN)), ("down", (HIDDEN, 128))):
    values = generator.standard_normal(shape).astype("float32") / 16
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))

with tvm_fusion.progress():
    artifact = tvm_fusion.compile(model, dims={"batch": tvm_fusion.DimRange(1, 512)})
    artifact.export(folder / "open")
    fixed = tvm_fusion.compile(model, dims={"batch": 64})
    fixed.export(folder / "fixed")

# %% [markdown]
# ## Time, kernel by kernel
#
# Whole calls take turns with calls whose kernels are timed, and all times are means of the faster
# half, which other processes disturbed least. So the rows add up to `kernels_us`, and what a whole
# call takes beyond that is `host_us`: checks of arguments, the virtual machine, gaps.

# %%
executable = tvm_fusion.load(folder / "fixed")
x = generator.standard_normal((64, 256)).astype("float32")
profile = executable.profile({"x": x}, runs=10)

print(f"a call {profile.end_to_end_us:.0f} us, its kernels {profile.kernels_us:.0f} us")
for row in profile.rows:
    print(f"{row.us:8.1f} us {row.share:6.1%}  {row.title}, by {row.template}")

assert profile.rows[0].operators[0] == "matmul"
assert np.isclose(sum(row.us for row in profile.rows), profile.kernels_us)
assert np.isclose(profile.kernels_us + profile.host_us, profile.end_to_end_us)

# %% [markdown]
# ## Is that fast?
#
# A kernel takes at least as long as its bytes take through memory, and as its operations take at
# the machine's peak. Both are measured on each machine (a copy, and numpy's matrix product) and
# kept in the user's cache. A share near 1 of either means that the kernel has little to gain; a
# share of the bandwidth above 1, that its tensors came from a cache.

# %%
rates = profile.rates
print(
    f"copies {rates.bandwidth / 1e9:.1f} GB/s, peak {rates.peak_flops['float32'] / 1e9:.0f} GFLOP/s"
)
for row in profile.rows:
    print(
        f"{row.title}: {row.bandwidth_share:.0%} of the bandwidth, {row.peak_share:.0%} of the peak"
    )

product = profile.rows[0]
assert product.flops > 2 * 64 * 256 * HIDDEN  # and what is elementwise
assert product.bytes >= 4 * (64 * 256 + 256 * HIDDEN + 64 * HIDDEN)

# %% [markdown]
# ## Against the planner's price
#
# The planner chose these groups by a price for each. Where it comes from is told: `measured` from a
# tuner's record, `fitted` to kernels of this kind of device, `counted` from machine code (AMD), or
# the `roofline`, which ranks alternatives and predicts no times. `tvm-fusion explain` has the same
# figures.

# %%
for row in profile.rows:
    print(f"{row.title}: expected {row.predicted_us:.1f} us ({row.source}), took {row.us:.1f} us")
explanation = tvm_fusion.explain(
    model, config=tvm_fusion.FusionConfig(dims={"batch": 64}), stock=False
)
assert [row.predicted_us for row in profile.rows] == [g.us for g in explanation.groups]

# %% [markdown]
# ## Symbolic dimensions
#
# The artifact for any batch is timed at the batch of its inputs. Bytes and operations are those of
# this call; a price is not given, since planning assumed another extent.

# %%
opened = tvm_fusion.load(folder / "open")
small, large = (
    opened.profile({"x": np.ones((batch, 256), "float32")}, runs=3) for batch in (16, 512)
)
assert (small.extents, large.extents) == ({"batch": 16}, {"batch": 512})
assert large.rows[0].flops == 32 * small.rows[0].flops
assert large.rows[0].predicted_us is None

# %% [markdown]
# ## A picture
#
# `--trace FILE.json` writes the fastest run as a trace that https://ui.perfetto.dev opens. A
# profile is plain data as well: it survives JSON, to be compared with the next version's.

# %%
(folder / "trace.json").write_text(json.dumps(trace(profile)))
events = json.loads((folder / "trace.json").read_text())["traceEvents"]
assert [e["name"] for e in events if e["ph"] == "X"] == ["main", *(r.title for r in profile.rows)]

kept = json.loads(json.dumps(profile.to_json()))
assert Profile.from_json(kept) == profile

# %% [markdown]
# ## On an NVIDIA GPU
#
# Kernels of a CUDA graph are timed as they run in it, by NVIDIA's CUPTI (`pip install
# "tvm_fusion[profile]"`). Without that, they are launched one by one between CUDA events, and
# `launched_us` tells what a whole call takes so: the graph is faster. NVTX ranges name the kernels
# in Nsight Systems.

# %%
scratch.cleanup()
