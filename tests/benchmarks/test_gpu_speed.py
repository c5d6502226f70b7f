"""The benchmark on a GPU: what it draws and compiles, and what its page says."""

import json
import math

import pytest

from benchmarks.gpu import table

ROW = {
    "name": "softmax_8x8", "dtype": "float16", "wrong": None, "floor": 0.88, "limit_us": None,
    "error": 0.5, "bytes": 256, "us": {"ours": 10.0, "copy": 9.0, "copy_alike": 9.5},
    "of_copy": 0.9,
}  # fmt: skip
ABOUT = {"device": "a GPU", "target": "cuda:sm_90a", "torch": "2", "failed": {}}


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, True),
        ({"of_copy": 0.87}, False),
        ({"floor": None, "of_copy": 0.1}, True),
        ({"limit_us": 9}, False),
        ({"limit_us": 10, "of_copy": 0.1}, True),
        ({"wrong": "nan"}, False),
    ],
)
def test_what_is_wanted(change, met):
    assert table.meets({**ROW, **change}) == met


def test_page():
    rows = [ROW, {**ROW, "name": "slow", "of_copy": 0.5}]
    rows += [{"name": "bad", "wrong": "errors of 7"}]
    page = table.render({"about": {**ABOUT, "failed": {"lost": "no template"}}, "rows": rows})
    assert "| softmax_8x8 | 0.0 | 10.00 | not measured | 9.00 | 9.50 | 90 % | 88 % | 0.50 |" in page
    assert "88 %: missed" in page
    assert "* bad: errors of 7" in page
    assert "* lost: no template" in page


def test_rows_of_some_works_take_the_place_of_those_kept():
    """On the same device; a run of all workloads is kept alone."""
    kept = {"about": {**ABOUT, "remark": "kept"}, "rows": [ROW, {**ROW, "name": "slow"}]}
    faster = {**ROW, "name": "slow", "of_copy": 0.9}
    added = {**ROW, "name": "new"}
    some = {"about": ABOUT, "rows": [faster, added]}
    assert table.joined(kept, some) == {"about": kept["about"], "rows": [ROW, faster, added]}
    whole = {"about": ABOUT, "rows": [faster, ROW]}
    assert table.joined(kept, whole) == whole
    other = {"about": {**ABOUT, "device": "another"}, "rows": [faster]}
    assert table.joined(kept, other) == other


@pytest.mark.torch
def test_packed_sequences_are_drawn_in_another_order():
    torch = pytest.importorskip("torch")
    packed = pytest.importorskip("benchmarks.gpu.packed")
    work = packed.PACKED[0]
    first, second = (work.draw(seed, "cpu")[-1] for seed in range(2))
    assert first.tolist() != second.tolist()
    for offsets in (first, second):
        assert sorted(offsets.diff().tolist()) == sorted(packed.LENGTHS)
    offsets = torch.tensor([0, 3, 4, 9])
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    result = packed.packed_causal(q, k, v, offsets)
    for begin, end in ((0, 3), (3, 4), (4, 9)):
        part = (x[:, :, begin:end] for x in (q, k, v))
        own = torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True)
        torch.testing.assert_close(result[:, :, begin:end], own)


PRODUCT = {**ROW, "name": "gemm", "flops": 20_000_000, "seed": None}


def of_seed(name, seed, **us):
    return {**PRODUCT, "name": name, "seed": seed, "us": {**ROW["us"], **us}}


def test_products_beside_the_fastest_peer_and_bare_cublas():
    rows = [of_seed("gemm", None, inductor=20.0, cublas=8.0)]
    rows.append(of_seed("attention", None, inductor=20.0, flash=15.0, cudnn=12.0))
    rows += [of_seed("a", 7, inductor=20.0, cublas=5.0), of_seed("b", 7, inductor=5.0)]
    rows += [of_seed("c_linear", 8, cublas=9.0), of_seed("d", 8, cublas=6.0, addmm=16.0)]
    page = table.render({"about": ABOUT, "rows": rows})
    assert "| gemm | 0.02 | 10.00 | 20.00 | 2 | 2.00 |  | 0.80 | 0.50 |" in page
    assert "| attention | 0.02 | 10.00 | 12.00 (cudnn) | 2 | 1.20 |  |  | 0.50 |" in page
    assert "### Products, random, seed 7" in page
    assert "PyTorch: 1.00 (geometric mean of 2), at least 0.50." in page
    assert "cuBLAS alone: 0.50 (geometric mean of 1), at least 0.50." in page
    assert "| 0.90 | 0.90 | 0.50 |" in page  # c_linear
    assert "| d |" not in page  # faster than all that compute the same
    assert "same operation: 1.20 (geometric mean of 2), at least 0.90." in page


def test_drawn_rows_have_a_count():
    rows = [{**ROW, "seed": 7}, {**ROW, "seed": 7, "of_copy": 0.1}, ROW]
    page = table.render({"about": ABOUT, "rows": rows})
    assert "1 of 2 reach what is wanted." in page


@pytest.mark.torch
def test_drawn_works_are_the_same_again_and_large():
    works = pytest.importorskip("benchmarks.gpu.works")
    catalog = pytest.importorskip("benchmarks.gpu.catalog")
    drawn = works.drawn(6, 30)
    assert [w.name for w in drawn] == [w.name for w in works.drawn(6, 30)]
    every = catalog.works(6, 30)
    assert len({w.name for w in every}) == len(every) > len(works.NAMED) + 30
    low, high = works.RANDOM_ELEMENTS
    assert all(low * 0.99 <= math.prod(w.shapes[0]) <= high for w in drawn)
    assert any(w.shapes[0][1] % 8 for w in drawn)
    norms = [w.shapes[1][0] for w in works.drawn_norms(6)]
    assert max(norms[: works.NORMS]) <= works.LONG < min(norms[works.NORMS :])
    assert {w.seed for w in every} == {None, 6}
    parts = works.norm_parts(1126)
    assert len({w.name for w in parts}) == len(parts) == 3 * 5  # five norms of unaligned rows
    assert {len(w.shapes) for w in parts} == {1, 3}


@pytest.mark.torch
def test_drawn_products_stand_beside_plain_ones(monkeypatch):
    products = pytest.importorskip("benchmarks.gpu.products")
    monkeypatch.setattr(products.Gemm, "rival", lambda self: None)
    found = products.drawn_products(6, 30)
    plain = {w.shapes[:2] for w in found if products.PLAIN in w.name}
    assert plain == {w.shapes[:2] for w in found}
    assert len(plain) == 30 < len(found)
    assert all(("residual" in w.name) == ("addmm" in w.peers()) for w in found)


@pytest.mark.torch
def test_a_look_up_touches_rows_of_its_table():
    torch = pytest.importorskip("torch")
    others = pytest.importorskip("benchmarks.gpu.others")
    shapes = ((50, 8), (3, 8), (8,), (8,), (2, 3))
    work = others.Embedding("look_up", others.embedded, shapes)
    *tables, ids = work.draw(0, "cpu")
    assert ids.shape == (2, 3)
    assert ids.dtype == torch.int64
    ids.fill_(7)
    result = work.function(*tables, ids)
    given = 16 + 3 * 16 + 2 * 16 + 6 * 8  # a row, the positions, scale and shift, the numbers
    assert work.touched([*tables, ids], [result]) == given + result.nbytes


@pytest.mark.torch
def test_experts_have_different_numbers_of_rows():
    torch = pytest.importorskip("torch")
    experts = pytest.importorskip("benchmarks.gpu.experts")
    work = experts._work(experts.experts_swiglu, 60, 4, 16, 24)
    x, weight, ends = work.draw(0, "cpu")
    assert ends[-1] == 60
    assert len({*ends.diff().tolist()}) > 1
    found = work.function(x, weight, ends)
    right = work.reference(x.double(), weight.double(), ends)
    torch.testing.assert_close(found.double(), right, rtol=0.05, atol=0.02)


@pytest.fixture
def decoder(monkeypatch):
    found = pytest.importorskip("benchmarks.gpu.decoder")
    small = {"HEADS": 4, "KEY_HEADS": 2, "DEPTH": 16, "HIDDEN": 64, "INNER": 96, "WORDS": 40}
    for name, value in small.items():
        monkeypatch.setattr(found, name, value)
    return found


@pytest.mark.torch
def test_a_step_of_the_decoder_reads_its_caches(decoder):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    shapes = decoder._shapes(1, 5)
    tensors = [torch.randn(shape) for shape in shapes[1:]]
    token = torch.tensor([[3]])
    logits, key, value = decoder.decode_step(token, *tensors)
    assert logits.shape == (1, 1, decoder.WORDS)
    assert key.shape == value.shape == (1, decoder.KEY_HEADS, 1, decoder.DEPTH)
    tensors[-1] = tensors[-1] + 1  # the values so far
    other, same_key, _ = decoder.decode_step(token, *tensors)
    assert torch.equal(key, same_key)
    assert not torch.allclose(logits, other)


@pytest.mark.torch
def test_a_step_over_static_caches_is_the_same_step(decoder):
    torch = pytest.importorskip("torch")
    token, *rest = decoder._shapes(2, 5)
    work = decoder.StaticStep("step", decoder.static_decode_step, (token, (1,), *rest))
    assert work.in_place == (13, 14, 21, 22)
    assert work.static == tuple(range(4, 23))
    first, position, *tensors = [
        t.double() if t.is_floating_point() else t for t in work.draw(0, "cpu")
    ]
    assert position.tolist() == [4]
    past = [t[:, :, :4] if t.ndim == 4 else t for t in tensors]
    logits, *new = decoder.decode_step(first, *past)
    torch.testing.assert_close(work.function(first, position, *tensors), logits)
    for i, place in zip(work.in_place, new, strict=True):
        torch.testing.assert_close(tensors[i - 2][:, :, 4:], place)


@pytest.mark.torch
def test_the_error_is_in_units_of_what_is_allowed():
    torch = pytest.importorskip("torch")
    run = pytest.importorskip("benchmarks.gpu.run")
    exact = torch.tensor([1.0, -100.0, 0.0], dtype=torch.float64)
    assert run.difference(exact.half(), exact, 2.0**-10) < 0.1
    assert run.difference((exact + 0.4).half(), exact, 2.0**-10) > 1
    assert run.difference((exact * math.nan).half(), exact, 2.0**-10) == math.inf


@pytest.mark.torch
@pytest.mark.cuda_toolchain
def test_a_work_is_compiled(tmp_path):
    pytest.importorskip("torch")
    from benchmarks.gpu.__main__ import main

    options = ["--out", str(tmp_path), "--count", "0", "--only", "group_norm_silu"]
    assert main(["build", *options]) == 0
    index = json.loads((tmp_path / "works.json").read_text())
    (name,) = index["names"]
    assert (tmp_path / name / "model.so").is_file()


@pytest.mark.torch
def test_works_run_once(tmp_path, capsys):
    pytest.importorskip("torch")
    from benchmarks.gpu import once
    from benchmarks.gpu.__main__ import main

    options = ["--out", str(tmp_path), "--target", "cpu", "--count", "0", "--only", "group_norm"]
    assert main(["build", *options]) == 0
    once.main([str(tmp_path)])
    assert capsys.readouterr().out.split() == ["group_norm_silu_2x320x64x64"]
