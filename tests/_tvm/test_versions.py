import importlib
import importlib.metadata

import pytest

import tvm_fusion
from tvm_fusion._tvm import versions as module


def pretend(monkeypatch, **versions):
    """Pretend that TVM's packages have other versions; None: the package is missing."""
    real = importlib.metadata.version

    def version(name):
        found = versions.get(name.replace("-", "_"), real(name))
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(module, "version", version)


def test_the_installed_versions_are_right():
    module.check_versions()


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"apache_tvm": "0.26.0"}, "found apache-tvm 0.26.0; expected 0.27.0.post1; run `pip"),
        ({"apache_tvm": None}, "found apache-tvm None; expected 0.27.0.post1"),
        (
            {"apache_tvm_ffi": "0.1.15"},
            r"found apache-tvm-ffi 0.1.15; expected 0.1.14 \(later ones",
        ),
        ({"apache_tvm_ffi": "0.1.15.post2"}, "found apache-tvm-ffi 0.1.15.post2"),
        ({"apache_tvm_ffi": "0.1.13"}, "found apache-tvm-ffi 0.1.13"),
        ({"apache_tvm_ffi": "0.2.0rc1"}, "found apache-tvm-ffi 0.2.0rc1"),
        ({"apache_tvm_ffi": "1.0"}, "found apache-tvm-ffi 1.0"),
        ({"apache_tvm_ffi": None}, "found apache-tvm-ffi None"),
    ],
)
def test_importing_stops_with_what_to_install(monkeypatch, versions, words):
    pretend(monkeypatch, **versions)
    with pytest.raises(ImportError, match=words) as caught:
        importlib.reload(tvm_fusion)
    assert '`pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"`' in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["0.1.14", "0.1.14.post0", "0.1.14.post1"])
def test_every_release_of_the_right_ffi_is_taken(monkeypatch, version):
    pretend(monkeypatch, apache_tvm_ffi=version)
    module.check_versions()
