"""The machine's rates: measured a few times, the best of them kept."""

import json

import pytest

from tvm_fusion.deploy.runtime.profile import profile
from tvm_fusion.deploy.runtime.profile.result import Rates


def test_best_of_a_few_measurements_is_kept(own_rates, monkeypatch):
    measured = iter([3.0, 5.0, 4.0, 1.0, 2.0])
    monkeypatch.setattr(
        profile, "_of_cpu", lambda *_: Rates(x := next(measured), {"float32": 10 * x}, "measured")
    )
    found = [profile.rates("llvm", 2) for _ in range(8)]
    assert [one.bandwidth for one in found] == [3, 5, 5, 5, 5, 5, 5, 5]
    assert found[-1].peak_flops == {"float32": 50}
    (entry,) = json.loads(own_rates.read_text()).values()
    assert len(entry) == 5


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_cache_is_written_anew(own_rates, content):
    own_rates.parent.mkdir(parents=True)
    own_rates.write_text(content)
    assert profile.rates("llvm", 1).bandwidth > 0
    assert len(json.loads(own_rates.read_text())) == 1


def test_a_cache_that_cannot_be_written_is_none(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = profile.rates("llvm", 1)
    assert found.bandwidth > 0
    assert found.peak_flops["float32"] > 0
