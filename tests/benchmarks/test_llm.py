"""The page of language models with weights of GGUF files, against llama.cpp where it is."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
gguf_rows = pytest.importorskip("benchmarks.llm.gguf_rows")
pytestmark = pytest.mark.torch

ROW = {
    "model": "Qwen2-0.5B", "weights": "Q4_0", "layers": 2, "words": 1000, "threads": 1,
    "step": "decode", "tokens_s": 50.0, "error": 1e-3, "compile_s": 7.4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "cells"),
    [(40.0, ["40.0", "1.25"]), (100.0, ["100.0", "**0.50**"]), (None, ["not measured", ""])],
)
def test_the_ratio_says_who_is_faster(theirs, cells):
    measured = {} if theirs is None else {"llama_cpp_tokens_s": theirs}
    (row,) = gguf_rows.table_rows([{**ROW, **measured}])
    assert row[len(gguf_rows.KEYS) :] == ["50.0", *cells, "1.0e-03", "7"]


def test_a_python_without_llama_cpp_measures_nothing(monkeypatch, tmp_path):
    from benchmarks.llm.llama_peer import LlamaCpp

    monkeypatch.setenv("LLAMA_CPP_PYTHON", "false")
    with LlamaCpp(tmp_path / "none.gguf", 1, 64, 64) as peer:
        assert not peer.is_there
        assert peer.prefill(8) is None
        assert peer.decode(8, 2) is None
