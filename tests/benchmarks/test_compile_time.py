"""The table of compile time names each case of its record, and samples add up."""

import time

from benchmarks.compile_time.sample import REST, Sampler
from benchmarks.compile_time.table import RECORD, page
from benchmarks.records import read


def test_the_page_is_that_of_its_record():
    record, text = read(RECORD), page()
    for case in record["cases"].values():
        layered = case["cpu"] + case["children"]
        assert f"| {case['cpu']:.2f} |" in text or f"| {layered:.2f} |" in text
        assert sum(case["main"].values()) + sum(case["threads"].values()) <= case["cpu"] * 1.02
        assert case["claims"]["asked"] < case["claims"]["questions"]


def test_a_sampler_sees_what_this_thread_uses():
    start = time.thread_time()
    with Sampler() as sampler:
        while sampler.main[REST] < 0.1 and time.thread_time() < start + 60:  # when it gets its turn
            sum(range(1000))
    assert 0.1 <= sampler.main[REST] <= time.thread_time() - start
