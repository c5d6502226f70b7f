"""The page of language models on a GPU, of results as a run writes them."""

from benchmarks.llm import gpu_table

ROW = {
    "name": "decode",
    "kernels": 3,
    "us": {"ours": 10.0, "inductor": 25.0, "copy": 1e-7},
    "of_copy": 0.5,
    "copy_tb_s": 4.1,
    "error": {"logits": 1e-3, "keys_0": 2e-3},
    "of_eager": {"logits": 3e-3},
    "compile_s": 7.4,
    "profile": {
        "ours": {"kernels": [["a", 0, 1.0], ["b", 1, 5.0], ["a", 6, 3.0]]},
        "inductor": {"kernels": [["c", 0, 25.0]]},
    },
}


def test_the_page_has_ratios_and_medians():
    page = gpu_table.render([gpu_table.compact(ROW)])
    step = "| decode | 3 | 1 | 10.0 | 25.0 | 2.50 | 50.0 % | 2.0e-03 | 3.0e-03 | 7 s |"
    assert step in page
    assert "| `a` | 2 | 2.00 |" in page
    assert "| `b` | 1 | 5.00 |" in page
