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
# # Write a rewrite rule
#
# Before operators are fused, the graph is searched for equal forms that are cheaper. Which forms
# are equal is said by *laws*: equations, such as `a * c + b * c = (a + b) * c`. Which one is
# cheaper is said by the planner, which knows what will share a kernel. So a law need not save
# arithmetic to be worth having.
#
# We write such a law here: one about sorting. You should have read
# `tutorials/02_classes_and_planner`. What the text says about results is checked by an `assert` in
# the cell below it.
#
# Run it as a notebook, or as the program `python tutorials/05_write_a_rewrite_rule.py`.

# %%
import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion

# %% [markdown]
# ## What is missing
#
# Points are made positive, ranked and scaled: three operators. Sorting needs all elements of a row
# at once and shares its kernel with nobody, so there are three kernels. (Floats would be sorted by
# integer keys, which are made before and read behind the sort: there the scaling has a kernel to
# join on either side.)


# %%
@I.ir_module
class Ranking:
    @R.function
    def main(points: R.Tensor((37, 1000), "int32")):
        with R.dataflow():
            positive = R.abs(points)
            ranked = R.sort(positive, axis=-1, descending=True)
            scaled = R.multiply(ranked, R.const(3))
            R.output(scaled)
        return scaled


before = tvm_fusion.explain(Ranking, "cpu", stock=False)
print(before)
assert [group.title for group in before.groups] == ["abs", "sort", "multiply"]

# %% [markdown]
# Scaling by three does not change the order. If it were done before the ranking it could share the
# kernel of `abs`: the same arithmetic in two kernels.
#
# ## The equation
#
# A law is a small class. Both sides are patterns: `tensors` names any tensors, `constants` those
# that are known at compile time, `function` makes an operator. `"order"` stands for the attributes
# of the sort, its axis and direction; where the same word stands on the right side, so do they.
# Operands of commutative operators match either way around. The docstring is the equation as the
# patterns print it.

# %%
from tvm_fusion.rewrite.egraph.law import Law
from tvm_fusion.rewrite.egraph.pattern import constants, function, tensors

(a,) = tensors("a")
(k,) = constants("k")
sort = function("relax.sort", "order")


class ScaleBeforeSort(Law):
    """sort(a, order) * k = sort(a * k, order)."""

    name = "scale_before_sort"
    before = sort(a) * k
    after = sort(a * k)


assert ScaleBeforeSort.__doc__ == f"{ScaleBeforeSort.before} = {ScaleBeforeSort.after}."

# %% [markdown]
# ## When it holds
#
# It does not always. A negative factor turns the order around. Several factors are several orders.
# And a factor of more axes than the tensor would be sorted along another axis than the tensor was.
#
# `check` says which condition is missing, as a code and a sentence, or None. It can ask for the
# types of what the names stand for and, where these are small constants, for their values.

# %%
from tvm_fusion.core.contract.template import Refusal


class ScaleBeforeSort(Law):
    """sort(a, order) * k = sort(a * k, order)."""

    name = "scale_before_sort"
    before = sort(a) * k
    after = sort(a * k)

    def check(self, match):
        factor = match.uniform("k")
        if factor is None:
            return Refusal("several_factors", "The factor is not one number.")
        if not 0 < factor < np.inf:
            return Refusal("not_positive", f"A factor of {factor:g} does not keep the order.")
        if match.graph[match.root].type.ndim != match.type("a").ndim:
            return Refusal("more_axes", "The factor has axes that the sorted tensor lacks.")
        return None


# %% [markdown]
# ## It is found, and why
#
# `registered` lets the search use a law for the body of a `with` statement; `register` does so for
# good. `rewrites=True` asks the explanation for what was changed. On the command line that is
# `tvm-fusion explain --rewrites`.

# %%
from tvm_fusion.rewrite.rules import registered

with registered(ScaleBeforeSort()):
    after = tvm_fusion.explain(Ranking, "cpu", stock=False, rewrites=True)
print(after)

(change,) = after.rewriting.changes
assert change.rules == ("scale_before_sort",)
assert change.before == "sort(a, axis=-1, descending=True) * 3"
assert change.after == "sort(a * 3, axis=-1, descending=True)"
assert [group.title for group in after.groups] == ["abs + multiply", "sort"]

# %% [markdown]
# One kernel less and its memory traffic, but not one operation. Who counts operations, as the
# published search of DNNFusion does, finds nothing to gain.

# %%
print(change.gain)
assert change.gain.flops == 0
assert change.gain.kernels == 1
assert change.gain.bytes == 2 * 37 * 1000 * 4

with registered(ScaleBeforeSort()):
    greedy = tvm_fusion.FusionConfig(rewrite="greedy")
    published = tvm_fusion.explain(Ranking, "cpu", greedy, stock=False, rewrites=True)
assert published.rewriting.changes == ()
assert published.counts.kernels == before.counts.kernels == 3

# %% [markdown]
# And where nothing stands before the sort that the factor could join, both forms have two kernels.
# The law still holds, but the search has no reason to use it.


# %%
def ranking(factor, first=None):
    """Make the graph with another factor, and with another operator before the sort, or none."""
    builder = relax.BlockBuilder()
    points = relax.Var("points", relax.TensorType((37, 1000), "int32"))
    with builder.function("main", [points]):
        with builder.dataflow():
            positive = points if first is None else builder.emit(first(points))
            ranked = builder.emit(relax.op.sort(positive, axis=-1, descending=True))
            factor = relax.const(np.asarray(factor, "int32"), "int32")
            scaled = builder.emit_output(relax.op.multiply(ranked, factor))
        builder.emit_func_output(scaled)
    return builder.get()


def rewriting(mod, **options):
    """Explain what is rewritten in a module when the law is known."""
    with registered(ScaleBeforeSort()):
        config = tvm_fusion.FusionConfig(**options)
        found = tvm_fusion.explain(mod, "cpu", config, stock=False, rewrites=True)
    return found.rewriting


alone = rewriting(ranking(3))
assert alone.uses["scale_before_sort"].fired == 1
assert alone.changes == ()

# %% [markdown]
# ## Near misses
#
# When a law is not used where one expected it, its statistics say why: how often the left side was
# found, and the sentences of the refusals. Here the factor is negative.

# %%
missed = rewriting(ranking(-3, relax.op.abs))
use = missed.uses["scale_before_sort"]
print(use)
assert missed.changes == ()
assert (use.tried, use.fired) == (1, 0)
assert use.refused == {"A factor of -3 does not keep the order.": 1}

# %% [markdown]
# The other two conditions, in the same way:

# %%
for factor, sentence in [
    (np.arange(1, 1001), "The factor is not one number."),
    (np.full((1, 1, 1), 2), "The factor has axes that the sorted tensor lacks."),
]:
    use = rewriting(ranking(factor, relax.op.abs)).uses["scale_before_sort"]
    print(dict(use.refused))
    assert use.refused == {sentence: 1}

# %% [markdown]
# ## Switched off
#
# Each law can be switched off by its name, `--without-rule scale_before_sort` on the command line:
# to find out what it is worth, or whether it is to blame. A name that no rule has is a mistake.

# %%
off = rewriting(Ranking, without=["scale_before_sort"])
assert off.changes == ()
assert off.unused["scale_before_sort"] == "switched off"

sentence = ""
try:
    rewriting(Ranking, without=["scale_before_sorting"])
except tvm_fusion.UserError as error:
    sentence = str(error)
print(sentence)
assert "expected one of scale_before_sort" in sentence

# %% [markdown]
# ## Is it right?
#
# A law is used without a flag only if its new form is as good as the old one in floating point, for
# all inputs on which the old one is finite. Laws that promise less set `needs` to a flag that users
# have to allow. Ours promises more: rounding keeps the order, so both sides are equal to the last
# bit, as products of integers are where they do not overflow. That is tested on floating point
# numbers of all sizes, with zeros, denormals and infinities among them, and with factors from tiny
# to huge.

# %%
random = np.random.default_rng(0)


def sides(values, factor):
    """Compute both sides of the equation, in float32."""
    factor = np.float32(factor)
    left = np.sort(values)[::-1] * factor
    return left, np.sort(values * factor)[::-1]


with np.errstate(over="ignore", under="ignore"):
    for _ in range(1000):
        values = random.standard_normal(64).astype("float32") * np.float32(10) ** random.integers(
            -44, 38, 64
        )
        values[:4] = 0, 1e-45, np.inf, -np.inf
        left, right = sides(values, 10 ** random.uniform(-10, 10))
        assert (left == right).all()

# %% [markdown]
# A test that cannot fail shows nothing. Without the check this one would have failed:

# %%
left, right = sides(values, -0.5)
assert (left != right).any()

# %% [markdown]
# And the model itself, both ways, against numpy.

# %%
from tvm_fusion.device import parse

target = parse("cpu").tvm_target()


def run(mod, *inputs):
    """Compile for the CPU, run, and return the result."""
    built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    machine = relax.VirtualMachine(built, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


points = random.integers(-10_000, 10_000, (37, 1000), "int32")
expected = 3 * np.sort(np.abs(points), axis=-1)[:, ::-1]

plain = run(Ranking, points)
with registered(ScaleBeforeSort()):
    rewritten = run(Ranking, points)
assert (plain == expected).all()
assert (rewritten == expected).all()

# %% [markdown]
# ## Where to go from here
#
# * `tvm_fusion/rewrite/laws` has the package's own laws, one family a file.
# * `tvm_fusion/rewrite/egraph/law.py` has the rest of the contract: laws in both directions, laws
#   that write what no pattern can say, and flags.
# * Laws meet: the search finds forms that take several of them, and the explanation names those
#   that a change needs, and no others.
