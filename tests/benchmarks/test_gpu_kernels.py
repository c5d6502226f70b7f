"""The functions that are timed on a GPU are as few kernels as they were when they were timed."""

import pytest

pytest.importorskip("torch")

import tvm_fusion
from benchmarks.gpu.others import OTHERS
from benchmarks.gpu.works import NAMED

# A norm and what two products have in common is computed once; more splits of keys than blocks of
# a cluster are merged by a second kernel.
SEVERAL = {
    "swiglu_block_4096_14336": 4,
    "swiglu_joined_4096_14336": 2,
    "decode_attention_1x8192": 2,
}
WORKS = {work.name: work for work in (*NAMED, *OTHERS)}


@pytest.mark.torch
@pytest.mark.parametrize("name", WORKS)
def test_kernels(name):
    found = tvm_fusion.explain(WORKS[name].exported(), "cuda:sm_90a", stock=False)
    assert found.counts.kernels == SEVERAL.get(name, 1)
