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
# # A first model
#
# A model file goes in, a folder with a compiled library comes out. This tutorial compiles
# SqueezeNet, a small image classifier, for the CPU of this machine and does with the result what
# one does with a compiled model: check it, run it, look inside, ship it. Then it does the same
# inside plain TVM code.
#
# You need to know Python, and roughly what a convolution is. You need not know TVM. What the text
# says about results is checked by an `assert` in the cell below it, so a cell that runs to its end
# shows that it is true on your machine. All of it takes less than a minute.
#
# Run it wherever `tvm_fusion` and `onnxruntime` are installed: as a notebook, or as the program
# `python 01_first_model.py`, which holds the same cells.

# %%
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test

import tvm_fusion

temporary = tempfile.TemporaryDirectory()
work = Path(temporary.name)

# %% [markdown]
# ## A model
#
# The `onnx` package has graphs of real models. They come without weights: operators called
# `ConstantOfShape` fill in a single number. Weights that are drawn from a seed take their place
# here: the predictions mean nothing, but the arithmetic is that of the real model.
#
# The graph is fixed to one image at a time. SqueezeNet works on any number of them, so the first
# dimension of its input and its output gets a name instead of an extent. Exporters do this too,
# for instance `torch.onnx.export` with `dynamic_shapes`.

# %%
folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
model = onnx.load(folder / "light_squeezenet.onnx")
model.ir_version = 4  # from which on a weight need not be an input as well

rng = np.random.default_rng(0)
stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
inputs = [value for value in model.graph.input if value.name not in stored]
drawn = {}
for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
    shape = stored.pop(node.input[0])
    scale = np.sqrt(2 / np.prod(shape[1:]))  # keeps the size of the values from layer to layer
    drawn[node.output[0]] = scale * rng.standard_normal(shape, np.float32)
    model.graph.node.remove(node)
for name, array in stored.items():
    drawn[name] = 0.1 * rng.standard_normal(array.shape, np.float32)
del model.graph.input[:], model.graph.initializer[:]
model.graph.input.extend(inputs)
model.graph.initializer.extend(
    onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in drawn.items()
)

for value in (*model.graph.input, *model.graph.output):
    value.type.tensor_type.shape.dim[0].dim_param = "batch"
path = work / "squeezenet.onnx"
onnx.save(model, path)

print(f"{path.name}: {len(model.graph.node)} operators, {path.stat().st_size / 1e6:.1f} MB")
for value in (*model.graph.input, *model.graph.output):
    dims = value.type.tensor_type.shape.dim
    print(f"  {value.name}: ({', '.join(d.dim_param or str(d.dim_value) for d in dims)})")

# %% [markdown]
# ## Compile
#
# `tvm_fusion.compile` takes the path and a target; `"cpu"` is the CPU of this machine. It has to
# know what `batch` is. If you do not say, it tells you. A mistake is a `UserError` with one
# sentence: what was found and what to do about it. On the command line the same sentence comes
# with exit code 2.

# %%
try:
    tvm_fusion.compile(path, target="cpu")
except tvm_fusion.UserError as error:
    refusal = str(error)
print(refusal)
assert "batch" in refusal

# %% [markdown]
# What the sentence calls `--dim batch=VALUE` is the argument `dims` in Python. With `batch` bound
# to 1 every shape is known. The result is an `Artifact` in memory. `export` writes it to a folder,
# and `load` opens such a folder.

# %%
artifact = tvm_fusion.compile(path, target="cpu", dims={"batch": 1})
artifact.export(work / "squeezenet")
executable = tvm_fusion.load(work / "squeezenet")

signature = executable.signatures["main"]
print(f"compiled in {artifact.seconds:.1f} s")
print("input ", signature.inputs[0])
print("output", signature.outputs[0])
assert signature.inputs[0].shape == (1, 3, 224, 224)
assert signature.outputs[0].shape == (1, 1000, 1, 1)

# %% [markdown]
# ## Check
#
# Is the result right? ONNX Runtime shares no code with TVM, so it is a good judge. The error is
# the largest difference, divided by the largest value. With 32-bit floats about 1e-6 is what
# different orders of summation account for; we ask for less than 1e-4.
#
# A check can pass for a bad reason: a network that answers the same for every class would match
# too. So we also look at the spread of the expected output.

# %%
import onnxruntime


def images(count, seed=0):
    """Draw normalised images, as the model expects them."""
    return np.random.default_rng(seed).standard_normal((count, 3, 224, 224), np.float32)


def relative_error(actual, expected):
    """Compute the largest difference over the largest value, in 64-bit floats."""
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
name_in, name_out = signature.inputs[0].name, signature.outputs[0].name

x = images(1)
expected = session.run([name_out], {name_in: x})[0]
actual = executable(data_0=x)[name_out]  # inputs and outputs go by their names in the model

difference = relative_error(actual, expected)
print(f"error {difference:.1e}; standard deviation of the output {expected.std():.1e}")
assert difference < 1e-4
assert expected.std() > 1e-3

# %% [markdown]
# ## Run and time
#
# A call takes numpy arrays or anything else that speaks DLPack, such as PyTorch tensors, and
# returns a dictionary. A call may also be told where to write its results with `out`. The first
# call in a thread sets up a virtual machine, so warm up before you measure, and take the median.

# %%
buffer = np.empty_like(actual)
executable(data_0=x, out={name_out: buffer})
assert np.array_equal(buffer, actual)

milliseconds = []
for _ in range(10):
    start = time.perf_counter()
    executable(data_0=x)
    milliseconds.append(1e3 * (time.perf_counter() - start))
print(f"median of {len(milliseconds)} runs: {statistics.median(milliseconds):.1f} ms")

# %% [markdown]
# ## Inspect
#
# What became of the operators? The manifest of the artifact says how many *kernels* one inference
# runs. A kernel is one launch on a GPU; on a CPU it is one loop nest that writes a full tensor.
# Each kernel reads its inputs from memory and writes its result there. `intermediate_bytes` adds up
# the tensors that only pass from one kernel to the next. Fusion lowers both numbers: when a
# convolution, its bias and its ReLU share one loop nest, the two tensors between them are never
# written.
#
# TVM without this package, "stock" TVM, fuses too. `count_stock` runs its default pipeline and
# counts with the same code. It works on a Relax module, which is TVM's form of a model; here
# TVM's own importer makes one.

# %%
import tvm
from tvm.relax.frontend.onnx import from_onnx

from tvm_fusion.deploy.count import count_stock
from tvm_fusion.device import parse

target = parse("cpu").tvm_target()
shapes = {name_in: [1, 3, 224, 224]}
mod = from_onnx(onnx.load(path), shape_dict=shapes, keep_params_in_input=False)

ours = artifact.manifest["functions"]["main"]
stock = count_stock(mod, target)
stock_bytes = stock.intermediate_bytes
print("           kernels   intermediate MB")
print(f"stock TVM {stock.kernels:8} {stock_bytes / 1e6:17.1f}")
print(f"tvm_fusion{ours['kernels']:8} {ours['intermediate_bytes'] / 1e6:17.1f}")
assert ours["kernels"] < stock.kernels
assert ours["intermediate_bytes"] < stock_bytes

# %% [markdown]
# Stages that could not do what they wanted leave a decision with the reason in the manifest. Most
# are pairs of operators that share no kernel. Here are the reasons, and how often each is given;
# `tvm-fusion explain squeezenet.onnx --dim batch=1` in a shell shows them edge by edge.

# %%
reasons = Counter(decision["code"] for decision in artifact.manifest["decisions"])
for code, count in reasons.most_common():
    sentences = [d["sentence"] for d in artifact.manifest["decisions"] if d["code"] == code]
    print(f"{count:3} x {code}, such as: {sentences[0]}")
assert "claim_broken" not in reasons

# %% [markdown]
# ## What is in the folder
#
# Three files: a shared library with the kernels, the weights next to it, and the manifest, which
# is JSON. The manifest has the size and the SHA-256 of the other two. `load` checks the sizes and
# the hash of the library, so half a copy of an artifact, or a changed one, is refused.

# %%
for file in sorted((work / "squeezenet").iterdir()):
    print(f"{file.stat().st_size:9,} bytes  {file.name}")

manifest = json.loads((work / "squeezenet" / "manifest.json").read_text())
print("\nthe manifest has", ", ".join(manifest))
print("weights are, for example,", ", ".join(list(manifest["weights"])[:3]))
assert set(manifest["files"]) == {"model.so", "weights.bin"}
for name, entry in manifest["files"].items():
    assert (work / "squeezenet" / name).stat().st_size == entry["bytes"]

# %%
changed = shutil.copytree(work / "squeezenet", work / "changed")
with (changed / "model.so").open("r+b") as file:
    file.seek(-1, os.SEEK_END)
    file.write(b"?")  # one byte, and the size stays
try:
    tvm_fusion.load(changed)
except tvm_fusion.UserError as error:
    refusal = str(error)
print(refusal)
assert "model.so" in refusal

# %% [markdown]
# ## Load it without the compiler
#
# TVM's compiler is a library of its own, by far the largest. A program that only runs models does
# not need it: `tvm_fusion.load` maps TVM's runtime library and not the compiler. Linux lists what a
# process has mapped in `/proc/self/maps`. This process has compiled, so the compiler is in the
# list; a fresh process that only loads does without, and gets the same numbers.

# %%
program = """
import sys
import numpy as np
import tvm_fusion

folder, inputs, outputs = sys.argv[1:]
result = tvm_fusion.load(folder)(**np.load(inputs))
np.savez(outputs, **result)
print(open("/proc/self/maps").read())
"""
np.savez(work / "inputs.npz", data_0=x)
arguments = [work / "squeezenet", work / "inputs.npz", work / "outputs.npz"]
process = subprocess.run(
    [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
)


def mapped(maps):
    """List the TVM libraries among the files that a process has mapped."""
    files = {Path(line.split()[-1]).name for line in maps.splitlines() if "/" in line}
    return sorted(name for name in files if name.startswith("libtvm"))


print("this process:  ", ", ".join(mapped(Path("/proc/self/maps").read_text())))
print("loading process:", ", ".join(mapped(process.stdout)))
assert "libtvm_compiler.so" in mapped(Path("/proc/self/maps").read_text())
assert "libtvm_runtime.so" in mapped(process.stdout)
assert "libtvm_compiler.so" not in mapped(process.stdout)
assert np.array_equal(np.load(work / "outputs.npz")[name_out], actual)

# %% [markdown]
# ## One artifact for every batch size up to 8
#
# A dimension can stay symbolic within a range. The artifact then runs at every extent in the
# range, and refuses others in one sentence.

# %%
any_batch = tvm_fusion.compile(path, target="cpu", dims={"batch": tvm_fusion.DimRange(1, 8)})
any_batch.export(work / "any_batch")
executable_any = tvm_fusion.load(work / "any_batch")
print("input ", executable_any.signatures["main"].inputs[0])

for count in (1, 3, 8):
    x_many = images(count, seed=count)
    expected_many = session.run([name_out], {name_in: x_many})[0]
    difference = relative_error(executable_any(data_0=x_many)[name_out], expected_many)
    print(f"batch {count}: error {difference:.1e}")
    assert difference < 1e-4

try:
    executable_any(data_0=images(9))
except tvm_fusion.UserError as error:
    refusal = str(error)
print(refusal)
assert "batch = 9" in refusal
assert "1 to 8" in refusal

# %% [markdown]
# ## The same from the command line
#
# `tvm-fusion` has a command for each of these steps, and `--json` for programs that call it. In a
# shell you would type what stands behind the `$`.


# %%
def shell(*arguments, code=0):
    """Run ``tvm-fusion`` in the temporary folder, print what it says, and return that."""
    print("$ tvm-fusion", *arguments)
    program = Path(sysconfig.get_path("scripts"), "tvm-fusion")
    done = subprocess.run([program, *arguments], cwd=work, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    assert done.returncode == code, done.returncode
    return done.stdout


shell("compile", "squeezenet.onnx", "--dim", "batch=1", "--dump", "stages", "-o", "build/one")
shell("inspect", "build/one")
checked = json.loads(shell("check", "build/one", "squeezenet.onnx", "--json"))
shell("run", "build/one", "--inputs", "inputs.npz", "--output", "outputs_cli.npz")
shell("run", "any_batch", "--dim", "batch=9", code=2)

assert checked["passed"]
assert checked["max_rel_error"] < 1e-4
assert np.array_equal(np.load(work / "outputs_cli.npz")[name_out], actual)

# %% [markdown]
# ## Inside plain TVM code
#
# If your program already uses TVM, keep it. With this package installed TVM knows a pipeline
# called `"tvm_fusion"`, which takes the place of TVM's default one. Either apply it to a module
# and build that, or name it in `tvm.compile` and let TVM do the rest. `mod` is the module that
# TVM's own importer made above.

# %%
from tvm import relax


def run_in_tvm(built):
    """Run ``main`` of what ``tvm.compile`` returns, the way TVM does it."""
    machine = relax.VirtualMachine(built, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


optimised = relax.get_pipeline("tvm_fusion", target=target)(mod)
first = run_in_tvm(tvm.compile(optimised, target, tir_pipeline="tvm_fusion"))

second = run_in_tvm(
    tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
)

print(f"first way against second: {relative_error(first, second):.1e}")
print(f"against the artifact:     {relative_error(first, actual):.1e}")
assert np.array_equal(first, second)
assert relative_error(first, actual) < 1e-5

# %% [markdown]
# ## One stage by itself
#
# The pipeline is a list of stages, and each stage is a TVM pass in `tvm_fusion.transform`. You
# can put one into a pipeline of your own. Two of them in a row, for example: `Legalize` turns
# each operator into a TensorIR function, the form in which TVM keeps loops; `FuseOperators` then
# puts functions that should share a kernel into one Relax function, a *group*, which `main` calls
# in their place.

# %%
from tvm_fusion import transform


def calls(module):
    """Name what the function ``main`` calls, in order: operators, or groups of them."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    values = [binding.value for binding in bindings if isinstance(binding.value, relax.Call)]
    callees = [v.args[0] if v.op == tvm.ir.Op.get("relax.call_tir") else v.op for v in values]
    return [c.name_hint for c in callees if isinstance(c, tvm.ir.GlobalVar)]


with target:
    legal = transform.Legalize()(mod)
    fused = transform.FuseOperators()(legal)

print(len(calls(legal)), "calls, such as", ", ".join(calls(legal)[:3]))
merged = [name for name in calls(fused) if "conv2d" in name and "relu" in name]
print(len(calls(fused)), "calls, such as", ", ".join(merged[:3]))
assert len(calls(fused)) < len(calls(legal))
assert merged

# %% [markdown]
# To see what every stage did, compile with `--dump FOLDER`, as above, or `dump=` in Python. There
# is one file after each stage, in TVMScript, which is Python syntax for TVM's modules. The files
# can be read back, so you can take one, change it, and go on from there.

# %%
for file in sorted((work / "stages").iterdir()):
    print(file.name)
text = (work / "stages" / "3_fusion.py").read_text()
members = [line.strip() for line in text.splitlines() if "R.call_tir(" in line]
print("\nthe first operators of the first group of 3_fusion.py:")
print("\n".join(members[:4]))

read_back = tvm.script.from_source((work / "stages" / "1_rewrite.py").read_text())
assert "main" in [gvar.name_hint for gvar in read_back.functions]

# %% [markdown]
# ## Where to go from here
#
# * `tvm-fusion doctor` says which targets this machine can compile for and run, and how to get
#   what is missing.
# * `--target cuda:sm_80` or `--target rocm:gfx942` compiles for a GPU; the machine that compiles
#   needs none.
# * `--precision fp16` stores weights and tensors in half the space; `check` reports the error.
# * `tvm_fusion.compile` also takes `torch.export` programs and Relax modules.
#
# The last cell removes the temporary folder.

# %%
temporary.cleanup()
