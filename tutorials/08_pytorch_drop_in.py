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
# # A drop-in for PyTorch
#
# Two ways from a PyTorch model to fused kernels: `torch.compile` with this package as its backend,
# which needs no change to the model, and `torch.export`, which gives one file to deploy. Needs
# PyTorch: `pip install tvm_fusion[torch]`. What the text says about results is checked by an
# `assert` in the cell below it.
#
# Run it as a notebook, or as the program `python tutorials/08_pytorch_drop_in.py`.

# %%
import tempfile
from pathlib import Path

import torch
from torch import nn

import tvm_fusion

torch.manual_seed(0)


class Classifier(nn.Module):
    """A small convolutional network that also returns its features."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, image):
        features = self.norm(self.conv(image)).relu().mean((2, 3))
        return {"logits": self.head(features), "features": features}


model = Classifier().eval()
image = torch.rand(1, 3, 16, 16)

# %% [markdown]
# ## `torch.compile`
#
# Installing the package registers the backend. The first call compiles, the next ones run kernels.
# Training is refused, so call under `torch.inference_mode()` or `torch.no_grad()`.

# %%
from torch._dynamo import list_backends, register_backend

if "tvm_fusion" not in list_backends():  # an installation without the entry point
    from tvm_fusion.torch_backend import compile_graph

    register_backend(compile_graph, "tvm_fusion")

compiled = torch.compile(model, backend="tvm_fusion")
with torch.inference_mode():
    expected = model(image)
    found = compiled(image)
assert torch.allclose(found["logits"], expected["logits"], atol=1e-5)

# %% [markdown]
# Parameters are read where they are, so a change is seen in the next call:

# %%
with torch.no_grad():
    model.head.bias.add_(1)
    assert torch.allclose(compiled(image)["logits"], model(image)["logits"], atol=1e-5)

# %% [markdown]
# `options={"freeze": True}` makes them constants instead: the batch norm is folded into the
# convolution, and weights are packed once for the matrix units. That is about twice as fast on a
# CPU; later changes are not seen. Options have the names of `FusionConfig`, and a wrong name is an
# error that says which one is near.

# %%
frozen = torch.compile(model, backend="tvm_fusion", options={"freeze": True})
with torch.inference_mode():
    assert torch.allclose(frozen(image)["logits"], model(image)["logits"], atol=1e-5)

misspelt = torch.compile(model, backend="tvm_fusion", options={"precison": "bf16"})
message = ""
try:
    with torch.inference_mode():
        misspelt(image)
except Exception as error:
    message = str(error)
assert "there is no option 'precison'; expected one of precision." in message

# %% [markdown]
# ## Shapes that vary
#
# With `dynamic=True` one compilation serves a range of sizes around the first; a size beyond it
# compiles again, for twice as many. What was compiled is kept on disk (`TVM_FUSION_CACHE`), so that
# another process, or the next one after a restart, finds it.

# %%
flexible = torch.compile(model, backend="tvm_fusion", dynamic=True)
with torch.inference_mode():
    for batch in (2, 3, 7):
        images = torch.rand(batch, 3, 16, 16)
        assert torch.allclose(flexible(images)["logits"], model(images)["logits"], atol=1e-5)

# %% [markdown]
# ## Export, check, deploy
#
# `torch.export` makes one program of the model, without Python. `tvm_fusion.load` gives an object
# that is called as the module is: PyTorch's tensors give PyTorch's tensors, numpy's arrays numpy's,
# nested as the module returns them.

# %%
batch = torch.export.Dim("batch", min=1, max=8)
program = torch.export.export(model, (torch.rand(2, 3, 16, 16),), dynamic_shapes=({0: batch},))
run = tvm_fusion.load(tvm_fusion.compile(program))
found = run(image)
with torch.inference_mode():
    expected = model(image)
assert torch.allclose(found["logits"], expected["logits"], atol=1e-5)
assert run(image.numpy())["features"].shape == (1, 16)

# %% [markdown]
# The file of `torch.export.save` goes through every command: `check` compares the artifact with
# PyTorch, `explain` tells what is fused and why, `bundle` writes a folder for machines without
# Python. The file does not keep the names of dimensions: `batch` is axis 0 of the image there.

# %%
from tvm_fusion.cli import main

with tempfile.TemporaryDirectory() as folder:
    file, artifact = str(Path(folder, "model.pt2")), str(Path(folder, "model"))
    torch.export.save(program, file)
    assert main(["compile", file, "-o", artifact]) == 0
    assert main(["check", artifact, file, "--dim", "image_0=3"]) == 0
