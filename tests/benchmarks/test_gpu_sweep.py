"""The sweep of design spaces on a GPU: what it chooses, and what its page says."""

import math

import pytest

from benchmarks.gpu_sweep import table
from tvm_fusion.tuning.candidates import choose


def config(block_m, block_n, **others):
    usual = {"block_k": 64, "stages": 4, "split_k": 1, "group_m": 8}
    usual |= {"consumers": 2, "is_ping_pong": 0, "blocks_per_sm": 1}
    return {"kernel": "wgmma", "block_m": block_m, "block_n": block_n, **usual, **others}


DEFAULT, WIDE, SMALL = config(128, 128), config(128, 256), config(64, 64)


def test_one_of_each_tile_and_variants_of_the_default():
    columns, deep = config(128, 128, group_m=1), config(128, 256, stages=3)
    found = [(SMALL, 9), (deep, 3), (columns, 2), (DEFAULT, 1), (WIDE, 2)]
    assert choose(found, DEFAULT, 4) == [DEFAULT, WIDE, SMALL, columns]
    assert choose(found, DEFAULT, 3) == [DEFAULT, WIDE, columns]
    assert choose(found, DEFAULT, 2) == [DEFAULT, WIDE]
    assert choose(found, DEFAULT, 1) == [DEFAULT]
    assert sorted(map(str, choose(found, DEFAULT, 9))) == sorted(str(c) for c, _ in found)


def test_ties_are_those_of_usual_groups():
    columns = config(128, 256, group_m=1)
    assert choose([(columns, 1), (WIDE, 1), (DEFAULT, 2)], DEFAULT, 2) == [DEFAULT, WIDE]


def row(one, us, wrong=None):
    return {"config": one, "clocks": 1000, "wrong": wrong, "error": 0.1, "us": us}


def test_page():
    shapes = [
        {"name": "first", "candidates": [row(DEFAULT, 12.0), row(WIDE, 10.0)]},
        {"name": "second", "candidates": [row(DEFAULT, 5.0), row(SMALL, 0.0, "errors of 7")]},
    ]
    about = {"device": "a GPU", "target": "cuda:sm_90a"}
    page = table.render({"about": about, "shapes": [*map(table.in_words, shapes)]})
    usual = "4 stages, 2 consumers, groups of 8"
    first = f"| first | 2 | wgmma 128x128x64, {usual} | 12.00 | wgmma 128x256x64, {usual} | 10.00 |"
    assert f"{first} 1.200 |" in page
    assert "The default is the best of 1 shapes" in page
    assert "| second |" not in page
    assert f"take {math.sqrt(1.2):.3f} times" in page
    assert "1 more than 1.05 times" in page
    assert f"* second, wgmma 64x64x64, {usual}: errors of 7" in page


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel": "mma.sync", "warps_m": 2, "warps_n": 4, "warps_k": 1}, "2x4x1 warps"),
        ({"is_ping_pong": 1}, "ping-pong"),
        ({"split_k": 4}, "split-K 4"),
        ({"blocks_per_sm": 2}, "2 blocks per SM"),
    ],
)
def test_a_configuration_in_words(changed, words):
    assert words in table.describe(config(128, 128, **changed))


def test_an_attention_in_words():
    found = {"kernel": "flash mma", "warps": 8, "rows_of_warp": 16, "block_n": 128, "stages": 2}
    found |= {"q_in_registers": 0, "uses_wgmma": 1, "is_ping_pong": 1}
    assert table.describe(found) == "wgmma 8x16 queries, 128 keys, 2 stages, ping-pong"


def test_other_kernels_of_attention_in_words():
    found = {"kernel": "flash tma", "warps": 12, "block_n": 128, "stages": 2, "is_ping_pong": 1}
    assert table.describe(found) == "TMA 3x64 queries, 128 keys, 2 stages, ping-pong"
    assert table.describe({"kernel": "flash decoding", "splits": 4, "groups": 0}) == (
        "flash decoding, splits 4"
    )


@pytest.mark.torch
def test_splits_and_orders_of_the_default_are_candidates():
    pytest.importorskip("torch")
    from benchmarks.gpu_sweep.build import of_each_kernel, orders

    split, columns = config(128, 128, split_k=2, stages=3), config(128, 128, group_m=1)
    assert orders([DEFAULT, WIDE, split, columns]) == [split, columns]
    assert orders([{"kernel": "flash mma", "stages": 2}]) == []
    other = {"kernel": "mma.sync"}
    ranked = [(WIDE, 3), (DEFAULT, 1), (SMALL, 2), (other, 9)]
    assert of_each_kernel(ranked) == [DEFAULT, SMALL, other]
