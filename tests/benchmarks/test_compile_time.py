"""The table of compile time is that of its JSON, and samples add up."""

import time

from benchmarks.compile_time.__main__ import HERE, render
from benchmarks.compile_time.sample import REST, Sampler
from benchmarks.records import read


def test_the_page_is_that_of_its_record():
    record = read(HERE / "results" / "compile_time.json.xz")
    assert (HERE / "README.md").read_text() == render(record)
    for case in record["cases"].values():
        assert sum(case["main"].values()) + sum(case["threads"].values()) <= case["cpu"] * 1.02
        assert case["claims"]["asked"] < case["claims"]["questions"]


def test_a_sampler_sees_what_this_thread_uses():
    start = time.thread_time()
    with Sampler() as sampler:
        while sampler.main[REST] < 0.1 and time.thread_time() < start + 60:  # when it gets its turn
            sum(range(1000))
    assert 0.1 <= sampler.main[REST] <= time.thread_time() - start
