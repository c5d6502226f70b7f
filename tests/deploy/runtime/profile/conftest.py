import pytest


@pytest.fixture(autouse=True)
def own_rates(tmp_path, monkeypatch):
    """A cache of one's own, and a machine that is measured at once."""
    from tvm_fusion.deploy.runtime.profile import profile

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(profile, "_SECONDS", 0.0)
    monkeypatch.setattr(profile, "_COPIED", 1 << 16)
    monkeypatch.setattr(profile, "_PRODUCTS", ((32, 32, 32),))
    return tmp_path / "cache" / "tvm_fusion" / "rates.json"
