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
# # Tune kernels and reuse the records
#
# Templates choose sizes of tiles and tasks by a model of the device. The model is close, and
# measuring may be closer. We measure configurations of a small model's kernels here, look at what
# was recorded, compile with it, and carry it to another file.
#
# What the text says about results is checked by an `assert` in the cell below it.
#
# Run it as a notebook, or as the program `python tutorials/06_tune_and_reuse_records.py`.

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion.cli.commands.tune import listed
from tvm_fusion.tuning.exchange import export_lines, import_lines
from tvm_fusion.tuning.measure import Effort

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
db = folder / "records.db"

# %% [markdown]
# ## What can be tuned
#
# Two matrix products with constant weights, and a softmax. The products have a design space: every
# blocking that fits the registers and caches. The softmax has fewer: its vectors and tasks.


# %%
@I.ir_module
class Block:
    @R.function
    def main(
        x: R.Tensor((61, 96), "float32"),
        w: R.Tensor((96, 320), "float32"),
        v: R.Tensor((320, 80), "float32"),
    ):
        with R.dataflow():
            product = R.matmul(x, w)
            hidden = R.tanh(product)
            scores = R.matmul(hidden, v)
            result = R.nn.softmax(scores)
            R.output(result)
        return result


generator = np.random.default_rng(0)
weights = {
    name: generator.standard_normal(shape).astype("float32") / 8
    for name, shape in (("w", (96, 320)), ("v", (320, 80)))
}
model = relax.transform.BindParams("main", weights)(Block)

# %% [markdown]
# ## Tune
#
# On the command line this is `tvm-fusion tune model.onnx --db records.db --budget 30m`. A budget is
# a time, or a number of trials of all runs together. Each trial builds one configuration in a
# process of its own, compares its results with the default's, and times both in turns: a crash or a
# hang costs that trial alone. What looks faster is raced against the default again, and finally the
# whole model is, too; a kernel that does not win keeps its default.
#
# The efforts here are tiny, so that the tutorial takes seconds; leave them out otherwise.

# %%
quick = Effort(seconds=0.005, fewest=2, most=5)
found = tvm_fusion.tune(model, db=db, budget="trials=12", effort=quick)
print(found)
assert (found.tasks, found.fixed, found.trials, found.failed) == (3, 0, 12, 0)
assert found.us <= found.default_us

# %% [markdown]
# Every trial is in the file as soon as it is measured. A run that is interrupted, or killed, is
# continued by the same command: what is measured already is not measured again. What compilations
# use is recorded when a run ends, after the races of the whole model: a killed run changes nothing.

# %%
more = tvm_fusion.tune(model, db=db, budget="trials=20", effort=quick)
assert more.trials == 20
assert tvm_fusion.tune(model, db=db, budget="trials=20", effort=quick).trials == 20

# %% [markdown]
# ## Look at the records
#
# `tvm-fusion tune --db records.db --list` prints them as a table. A task whose default was not
# beaten is listed as well, with a gain of 1: that is known now, too.

# %%
for record in listed(db):
    print(f"{record['gain']:.3f}x", record["title"], record["config"])
assert all(record["gain"] >= 1 for record in listed(db))

# %% [markdown]
# ## Compile with them
#
# `compile --db records.db`, or the environment variable `TVM_FUSION_RECORDS`. A record is looked up
# by the structure of the group, its shapes and dtypes, the device and the versions. One of another
# group, architecture or number of cores is not used; one of another CPU of the same architecture or
# of another version is, and `explain` says so. Results are the same up to rounding: only the order
# of sums may differ.

# %%
config = tvm_fusion.FusionConfig(db=db)
explanation = tvm_fusion.explain(model, config=config, stock=False)
for decision in explanation.tuned:
    print(decision.producer, decision.sentence)
assert len(explanation.tuned) == sum(record["gain"] > 1 for record in listed(db))

tvm_fusion.compile(model, config=config).export(folder / "tuned")
x = generator.standard_normal((61, 96)).astype("float32")
(result,) = tvm_fusion.load(folder / "tuned")(x=x).values()
scores = np.tanh(x.astype("float64") @ weights["w"]) @ weights["v"]
expected = np.exp(scores - scores.max(-1, keepdims=True))
expected /= expected.sum(-1, keepdims=True)
assert np.abs(result - expected).max() < 1e-5

# %% [markdown]
# ## Carry them
#
# JSON lines can be read, merged and kept under version control. Where both files know a task, the
# configuration that gained more stays.

# %%
assert export_lines(db, folder / "records.jsonl") == 3
first = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
print(first["title"], first["tuned"])
assert import_lines(folder / "other.db", folder / "records.jsonl") == 3
assert [r["config"] for r in listed(folder / "other.db")] == [r["config"] for r in listed(db)]
scratch.cleanup()
