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
# # A language model, from a configuration to generated tokens
#
# A decoder of transformers becomes one artifact of two functions: `prefill`, which takes the tokens
# of a prompt, and `decode`, which takes one. Both read the same weights, and write keys and values
# into the same caches, which a session holds. What is around that, such as a tokenizer, a scheduler
# or a server, is yours.
#
# What the text says about results is checked by an `assert` in the cell below it. Times are printed
# and not checked: they are another machine's every time.
#
# Run it as a notebook, or as the program `python tutorials/10_language_model.py`. It needs
# `pip install "tvm_fusion[transformers]"`.

# %%
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers

import tvm_fusion
from tvm_fusion.device import cuda_devices

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)

# %% [markdown]
# ## The model
#
# The architecture of Llama 3 with few and narrow layers, and random weights, so that nothing is
# downloaded: `LlamaForCausalLM.from_pretrained(...)` would stand here. `causal_lm` knows the
# decoders that transformers has, with sliding windows, experts and recurrent layers; `seq2seq_lm`
# those with an encoder, such as T5 and Whisper.

# %%
VOCABULARY, MAX_LENGTH = 1000, 256
config = transformers.LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=MAX_LENGTH,
    bos_token_id=1,
    eos_token_id=2,
)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config).eval()
programs = tvm_fusion.models.causal_lm(model, MAX_LENGTH, chunk=64)

assert list(programs) == ["prefill", "decode"]
assert programs.caches == ("keys_0", "values_0", "keys_1", "values_1")

# %% [markdown]
# ## One artifact
#
# Any mapping of names to models is compiled so: programs of `torch.export`, Relax modules, ONNX
# files. `in_place` names the inputs that hold a state. Weights of equal elements are stored once;
# one that the two functions want in other orders is stored in both.

# %%
artifact = tvm_fusion.compile(programs, in_place=programs.caches)
executable = tvm_fusion.load(artifact.export(folder / "model"))

functions = artifact.manifest["functions"]
stored = sum(array.nbytes for array in artifact.weights.values())
once = sum(parameter.nbytes for parameter in model.parameters())
used = {name: set(entry["weights"]) for name, entry in functions.items()}
twice = sum(
    artifact.weights[name].nbytes for name in used["prefill"] ^ used["decode"]
)  # of one function alone
print(f"weights: {once / 1e6:.2f} MB in the model, {stored / 1e6:.2f} MB stored")
print(f"of one function alone: {twice / 1e6:.2f} MB")
assert stored < 2 * once

# %% [markdown]
# ## Tokens
#
# A session has the caches of one sequence, or of `batch` sequences that advance together; several
# sessions share the weights. A prompt of any length goes in, in parts of at most `chunk` tokens.

# %%
prompt = np.random.default_rng(0).integers(3, VOCABULARY, (1, 100))
session = executable.session()
logits = session.prefill(prompt)["logits"]

with torch.no_grad():
    expected = model(torch.from_numpy(prompt)).logits[:, -1].numpy()
assert session.length == 100
assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max() + 1e-5

# %% [markdown]
# What comes out are logits, and what to do with them is one function of yours: the most likely
# token, or one that is drawn.


# %%
def drawn(logits, generator, temperature=0.8, top_k=40):
    """Draw a token of the ``top_k`` most likely ones."""
    (row,) = logits.astype("float64")
    kept = np.argpartition(row, -top_k)[-top_k:]
    scaled = (row[kept] - row[kept].max()) / temperature
    chances = np.exp(scaled) / np.exp(scaled).sum()
    return generator.choice(kept, p=chances)[None, None]


def generate(session, logits, count, generator):
    tokens = []
    start = time.perf_counter()
    for _ in range(count):
        tokens.append(drawn(logits, generator))
        logits = session.decode(tokens[-1])["logits"]
    return np.concatenate(tokens, 1), count / (time.perf_counter() - start)


tokens, rate = generate(session, logits, 64, np.random.default_rng(1))
print("tokens", tokens[0, :12], "...", f"{rate:.0f} tokens/s")
assert session.length == 164

# %% [markdown]
# The sampled tokens are those that PyTorch's logits would give: one call on all of them compares
# them.

# %%
whole = np.concatenate([prompt, tokens], 1)
with torch.no_grad():
    eager = model(torch.from_numpy(whole)).logits.numpy()
generator = np.random.default_rng(1)
again = [drawn(eager[:, 99 + step], generator) for step in range(64)]
np.testing.assert_array_equal(np.concatenate(again, 1), tokens)

# %% [markdown]
# ## What is out of range
#
# A token that the vocabulary does not have, and more tokens than the caches hold, are one sentence.
# Nothing has changed then; `session.reset()` begins another sequence, and a position that is given
# goes back to it.

# %%
for call in (
    lambda: session.decode([[VOCABULARY]]),
    lambda: session.prefill(np.zeros((1, 93), "int64")),
):
    try:
        call()
    except tvm_fusion.UserError as error:
        print(error)
assert session.length == 164

session.decode(tokens[:, -1:], position=163)
assert session.length == 164

# %% [markdown]
# ## Memory
#
# Caches are what grows with the length: keys and values of every layer. Weights are mapped from the
# file, so processes share them.

# %%
caches = sum(cache.nbytes for cache in session.caches.values())
print(f"caches: {caches / 1e6:.2f} MB for {MAX_LENGTH} tokens")
assert caches == 2 * 2 * MAX_LENGTH * config.num_key_value_heads * 16 * 4

# %% [markdown]
# ## On a GPU
#
# The same two functions for an NVIDIA GPU; `decode` is a CUDA graph there, and the caches stay in
# the GPU's memory. Tensors of PyTorch go in and come out without a copy.

# %%
devices = cuda_devices()
if devices:
    artifact = tvm_fusion.compile(programs, "cuda", in_place=programs.caches, precision="fp16")
    session = tvm_fusion.load(artifact.export(folder / "gpu")).session()
    logits = session.prefill(torch.from_numpy(prompt))["logits"].float().cpu().numpy()
    assert np.abs(logits - expected).max() < 2e-2 * np.abs(expected).max()
    start = time.perf_counter()
    token = torch.from_numpy(logits.argmax(-1)[:, None])
    for _ in range(64):
        token = session.decode(token)["logits"].argmax(-1, keepdim=True)
    print(f"{64 / (time.perf_counter() - start):.0f} tokens/s on {devices[0].arch}")
else:
    print("no NVIDIA GPU here")
