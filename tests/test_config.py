import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_fusion import DimRange, FusionConfig
from tvm_fusion.config import parse_dim, parse_dims
from tvm_fusion.core.flags import FLAGS
from tvm_fusion.errors import UserError

NAMES = st.text(min_size=1)


@pytest.mark.slow
@given(NAMES, st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_dim_is_read_as_it_is_written(name, low, more):
    assert parse_dim(f"{name}={low}") == (name, low)
    assert parse_dim(f"{name}={low}..{low + more}") == (name, DimRange(low, low + more))
    stepped = DimRange(3 * low, 3 * (low + more), 3)
    assert parse_dim(f"{name}={stepped.text}") == (name, stepped)


@given(st.text())
def test_any_other_text_is_refused_in_words(text):
    try:
        name, value = parse_dim(text)
    except UserError:
        return
    low, high = (value, value) if isinstance(value, int) else (value.low, value.high)
    assert name
    assert 0 <= low <= high


@pytest.mark.parametrize(
    "text",
    ["", "batch", "batch=", "=4", "batch=x", "batch=-1", "batch=1.5", "batch=..8", "batch=1..",
     "batch=1...8", "batch=1..8..9", "batch= 4", "=1..2", "batch=\u0661", "batch=1..\u0663"],
)  # fmt: skip
def test_malformed_dims(text):
    with pytest.raises(
        UserError, match=r"expected NAME=EXTENT, NAME=LOW\.\.HIGH or NAME=LOW\.\.HIGH:STEP"
    ):
        parse_dim(text)


@pytest.mark.parametrize("text", ["batch=8..1", "batch=1..0"])
def test_empty_dims(text):
    with pytest.raises(UserError, match="allows no extent; expected 0 <= LOW <= HIGH"):
        parse_dim(text)


def test_several_dims_have_several_names():
    assert parse_dims(["a=1", "b=2..3"]) == {"a": 1, "b": DimRange(2, 3)}
    with pytest.raises(UserError, match="--dim 'a=2' names 'a' again"):
        parse_dims(["a=1", "a=2"])


def test_options_are_checked():
    with pytest.raises(UserError, match="precision 'fp8'; expected one of fp32, fp16, bf16"):
        FusionConfig(precision="fp8")
    with pytest.raises(UserError, match=r"dims\['batch'\] is \(1, 8\); expected an int or a Dim"):
        FusionConfig(dims={"batch": (1, 8)})


def test_a_dump_folder_may_be_a_string():
    assert FusionConfig(dump="here").dump == Path("here")


def test_rewriting_is_checked():
    with pytest.raises(UserError, match="rewrite 'fast'; expected one of search, greedy, none"):
        FusionConfig(rewrite="fast")
    with pytest.raises(UserError, match="no flag 'reasociate'; expected one of reassociate"):
        FusionConfig(allow=["reasociate"])
    with pytest.raises(UserError, match="allow is 'reassociate'; expected several names"):
        FusionConfig(allow="reassociate")
    with pytest.raises(UserError, match="without is 3; expected several names"):
        FusionConfig(without=3)


def test_fast_math_is_every_flag():
    assert FusionConfig().flags == ()
    assert FusionConfig(allow=["approximate"]).flags == ("approximate",)
    assert FusionConfig(fast_math=True).flags == tuple(FLAGS)


def test_equal_configs_are_equal():
    assert FusionConfig(allow=["approximate"]) == FusionConfig(allow=("approximate",))


def test_the_config_needs_no_tvm():
    code = "import sys, tvm_fusion.config; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["h=1..8:", "h=4:2", "h=1..8:x", "h=1..8:2:2"])
def test_malformed_steps_are_refused(text):
    with pytest.raises(UserError, match=r"LOW\.\.HIGH:STEP"):
        parse_dim(text)


def test_a_step_that_no_extent_is_a_multiple_of_is_refused():
    with pytest.raises(UserError, match="allows no extent; expected a multiple of 32 in it"):
        parse_dim("h=33..63:32")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": [("batch", 1)]}, "dims is [('batch', 1)]; expected a dict by name"),
        ({"half_io": "no"}, "half_io is 'no'; expected True or False"),
        ({"error_bound": "1e-3"}, "error_bound is '1e-3'; expected a number"),
        ({"error_bound": True}, "error_bound is True; expected a number"),
        ({"dump": 3}, "dump is 3; expected a path"),
        ({"dims": {"n": True}}, "dims['n'] is True; expected an int or a DimRange"),
        ({"workers": True}, "workers is True; expected a whole number from 1"),
    ],
)
def test_types_of_options(options, words):
    with pytest.raises(UserError, match=re.escape(words)):
        FusionConfig(**options)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((True, 8), "low of a DimRange is True"),
        ((1, 8.0), "high of a DimRange is 8.0"),
        ((1, None), "high of a DimRange is None"),
        ((1, 8, "2"), "step of a DimRange is '2'"),
    ],
)
def test_ends_of_ranges_are_whole(ends, words):
    with pytest.raises(UserError, match=f"{words}; expected a whole number"):
        DimRange(*ends)


def test_numpys_integers_are_whole():
    size = np.int64(8)
    assert FusionConfig(dims={"n": size, "m": DimRange(np.uint8(1), size)}) == FusionConfig(
        dims={"n": 8, "m": DimRange(1, 8)}
    )
