"""Queries and keys that are halves side by side, as after rotary embeddings: copied vectors."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, Emitted, agrees, arrays, check, group, run_launches, tensor

from tests.schedule.attention.attention_graphs import attention, op, reference
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.schedule.attention.decode.config import FlashDecodeConfig
from tvm_fusion.schedule.attention.flash.config import FlashMmaConfig
from tvm_fusion.schedule.attention.flash.problem import flash_problem
from tvm_fusion.schedule.attention.flash.tma.config import FlashTmaConfig, tma_configs
from tvm_fusion.schedule.attention.flash.tma.operand import tma_operands
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.attention.template import Attention

HALF = "float16"
TEMPLATE = Attention(True)


def joined(queries, keys, sizes):
    """Parameters and a body whose queries and keys are parts of some sizes."""
    params = [
        tensor(f"{name}{n}", 1, 2, rows, size, dtype=HALF)
        for name, rows in (("q", queries), ("k", keys))
        for n, size in enumerate(sizes)
    ]
    params.append(tensor("v", 1, 2, keys, sum(sizes), dtype=HALF))

    def body(emit, *given):
        q, k = (emit(op.concat(list(x), -1)) for x in np.split(np.array(given[:-1], object), 2))
        return attention()(emit, q, k, given[-1])

    def exact(*given):
        q, k = (np.concatenate(given[i : i + len(sizes)], -1) for i in (0, len(sizes)))
        return reference()(q, k, given[-1])

    return params, body, exact


@pytest.mark.parametrize("sizes", [(32, 32), (64, 64), (16, 8, 40)], ids=str)
def test_vectors_of_each_part_are_copied(sizes):
    params, body, exact = joined(37, 53, sizes)
    claim, func = check(TEMPLATE, params, body, exact, CUDA, 4e-3)
    assert isinstance(claim.details.config, FlashMmaConfig)
    problem = flash_problem(read_group(claim.group, (HALF, "float32")))
    for letter, operand in (("q", problem.q), ("k", problem.k)):
        assert {x.source.name for x in operand.loads} == {
            p.name for p in params if p.name.startswith(letter)
        }
    text = func.script()
    assert "cp_async_16" in text
    assert "vector[lane]" not in text  # nothing is chosen element by element


@pytest.mark.parametrize("sizes", [(64, 64), (128, 64)], ids=str)
def test_boxes_of_each_part(sizes):
    """TMA has a map for each part that is whole panels."""
    params, body, exact = joined(150, 150, sizes)
    members = group(params, body, CUDA)
    problem = flash_problem(read_group(members, (HALF, "float32")))
    q, k, v = tma_operands(problem)
    assert (
        q.panels == k.panels == tuple((n, i) for n, s in enumerate(sizes) for i in range(0, s, 64))
    )
    assert v.panels == tuple((0, i) for i in range(0, sum(sizes), 64))
    claim = TEMPLATE.claim(members, CUDA.device)
    config = next(tma_configs(problem, CUDA.device))
    claim = replace(claim, details=replace(claim.details, config=config))
    (made,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    agrees(Emitted(members, claim, made.func), params, exact, CUDA, 4e-3)


def test_parts_that_end_within_a_panel_have_no_boxes():
    params, body, _ = joined(150, 150, (32, 96))
    assert tma_operands(flash_problem(read_group(group(params, body, CUDA)))) is None


def test_few_wide_heads_of_halves_are_copied_by_tma():
    """As of Gemma 3: heads of 256 elements that share one KV head."""
    params, body, _ = joined(512, 512, (128, 128))
    claim = TEMPLATE.claim(group(params, body, CUDA), CUDA.device)
    assert isinstance(claim.details.config, FlashTmaConfig)


def test_parts_that_end_within_a_vector_are_no_copies():
    params, body, _ = joined(37, 53, (36, 28))
    problem = flash_problem(read_group(group(params, body, CUDA), (HALF, "float32")))
    assert problem.q.loads == problem.k.loads == ()


def test_flash_decoding_reads_parts():
    params, body, exact = joined(1, 301, (32, 32))
    members = group(params, body, CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert isinstance(claim, Claim)
    assert isinstance(claim.details.config, FlashDecodeConfig)
    inputs = arrays(params)
    found = run_launches(claim, [inputs[v.name] for v in members.inputs], [((1, 2, 1, 64), HALF)])
    (want,) = exact(*(x.astype("float64") for x in inputs.values()))
    assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()
