"""The cache of compiled models: what counts, two processes, damage, the bound."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import dense, dense_data, dense_expected, dense_weights

import tvm_fusion
from tvm_fusion import DimRange, compiler
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.cache import folder as caches
from tvm_fusion.deploy.cache.folder import ArtifactCache, CachedArtifact
from tvm_fusion.deploy.cache.key import cache_key
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

pytestmark = pytest.mark.slow_beyond(2)

TESTS = Path(__file__).parents[2]


@pytest.fixture
def compiled(monkeypatch):
    """Lists what is really compiled: an artifact of the module each time."""
    artifact, count = tvm_fusion.compile(dense(), dims={"batch": 2}), []

    def fake(model, target, spec, config):
        count.append(config)
        return artifact

    monkeypatch.setattr(compiler, "_compile", fake)
    return count


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def right(artifact, folder):
    data = dense_data(2)
    found = tvm_fusion.load(artifact.export(folder))(data=data)["scores"]
    expected = dense_expected(data, **dense_weights())
    return np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_second_time_nothing_is_compiled(compiled, tmp_path):
    onnx.save(dense(), tmp_path / "m.onnx")
    place = tmp_path / "cache"
    for number, model in enumerate((dense(), dense(), tmp_path / "m.onnx")):
        artifact = tvm_fusion.compile(model, cache=place, dims={"batch": 2})
        assert isinstance(artifact, CachedArtifact) == (number > 0)
        assert right(artifact, tmp_path / f"out{number}")
    assert len(compiled) == 1
    assert len(entries(place)) == 1
    assert artifact.manifest["functions"]["main"]["kernels"] >= 1
    del artifact
    assert not [path for path in place.glob(".*") if path.name != ".locks"]


def test_everything_that_matters_is_in_the_key(monkeypatch, tmp_path):
    cpu, v3 = parse("cpu"), parse("cpu:x86-64-v3")
    db = tmp_path / "records"
    db.write_bytes(b"one")
    several = [
        cache_key(dense(), cpu, FusionConfig()),
        cache_key(dense(seed=3), cpu, FusionConfig()),
        cache_key(dense(), v3, FusionConfig()),
        cache_key(dense(), parse("cpu:x86-64-v3,-fma"), FusionConfig()),
        cache_key(dense(), cpu, FusionConfig(db=db)),
        *(
            cache_key(dense(), cpu, FusionConfig(**options))
            for options in (
                {"precision": "fp16"}, {"dims": {"batch": 2}}, {"dims": {"batch": 3}},
                {"dims": {"batch": DimRange(1, 3)}}, {"rewrite": "none"}, {"fast_math": True},
                {"constants": {"k": np.array(1)}}, {"constants": {"k": np.array(1.0)}},
                {"allow": ("approximate",)}, {"without": ("join_matmuls",)}, {"cuda_graph": False},
            )
        ),
    ]  # fmt: skip
    db.write_bytes(b"two")
    several.append(cache_key(dense(), cpu, FusionConfig(db=db)))
    monkeypatch.setenv("CXX", "clang++")
    several.append(cache_key(dense(), cpu, FusionConfig()))
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("tvm_fusion.deploy.cache.key.version", lambda name: "another")
    several.append(cache_key(dense(), cpu, FusionConfig()))
    assert len(set(several)) == len(several)


@pytest.mark.parametrize("name", sorted(manifest.NAMES))
@pytest.mark.parametrize("damage", ["truncated", "changed", "gone"])
def test_what_is_damaged_is_compiled_again(compiled, tmp_path, name, damage):
    place = tmp_path / "cache"
    tvm_fusion.compile(dense(), cache=place, dims={"batch": 2})
    (key,) = entries(place)
    file = place / key / name
    content = file.read_bytes()
    file.unlink()
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    artifact = tvm_fusion.compile(dense(), cache=place, dims={"batch": 2})
    assert len(compiled) == 2
    assert right(artifact, tmp_path / "out")
    assert isinstance(tvm_fusion.compile(dense(), cache=place, dims={"batch": 2}), CachedArtifact)


def test_keeps_what_was_used_last_within_its_bound(compiled, monkeypatch, tmp_path):
    def take(batch):
        return tvm_fusion.compile(dense(), cache=tmp_path, dims={"batch": batch})

    take(1)
    size = sum(file.stat().st_size for file in (tmp_path / entries(tmp_path)[0]).iterdir())
    monkeypatch.setenv(caches.LIMIT, str(2 * size + size // 2))
    take(2)
    first, second = sorted(
        map(tmp_path.joinpath, entries(tmp_path)), key=lambda p: p.stat().st_mtime
    )
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    held = take(1)  # used again, and held while it goes
    take(3)
    assert first.exists()
    assert not second.exists()
    monkeypatch.setenv(caches.LIMIT, "1K")
    take(4)
    assert entries(tmp_path) == []
    assert right(held, tmp_path / "out")


def test_what_a_killed_process_left_goes_a_day_later(compiled, tmp_path):
    place = tmp_path / "cache"
    for name, seconds in ((".old", 1), (".new", None)):
        (place / name).mkdir(parents=True)
        if seconds:
            os.utime(place / name, (seconds, seconds))
    tvm_fusion.compile(dense(), cache=place, dims={"batch": 2})
    assert not (place / ".old").exists()
    assert (place / ".new").exists()


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tiny_models import dense
import tvm_fusion
from tvm_fusion import compiler
from tvm_fusion.deploy.cache.folder import CachedArtifact
compile = compiler._compile
def telling(*arguments):
    print("compiled")
    return compile(*arguments)
compiler._compile = telling
print("ready", flush=True)
sys.stdin.readline()
artifact = tvm_fusion.compile(dense(), cache=sys.argv[2], dims={"batch": 2})
print(artifact.export(sys.argv[3]))
"""


@pytest.mark.slow
def test_two_processes_at_once_compile_once(tmp_path):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, TESTS, tmp_path / "cache", tmp_path / f"out{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    told = "".join(child.communicate()[0] for child in children)
    assert [child.returncode for child in children] == [0, 0]
    assert told.count("compiled") == 1
    assert len(entries(tmp_path / "cache")) == 1
    one, other = ((tmp_path / f"out{i}" / "model.so").read_bytes() for i in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dump": "dumped"}, "cache with the option dump"),
        ({"profile": "1m"}, "cache with the option profile"),
    ],
)
def test_options_that_measure_or_write(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        tvm_fusion.compile(dense(), cache=tmp_path / "cache", **options)


def test_mistakes(monkeypatch, tmp_path):
    import tvm

    with pytest.raises(UserError, match="a model of type IRModule has no cache"):
        tvm_fusion.compile(tvm.IRModule({}), cache=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to the cache"):
        tvm_fusion.compile(dense(), cache=tmp_path / "file")
    monkeypatch.setenv(caches.LIMIT, "much")
    with pytest.raises(UserError, match="TVM_FUSION_CACHE_SIZE is 'much'"):
        tvm_fusion.compile(dense(), cache=tmp_path)


def test_sizes_and_places(monkeypatch, tmp_path):
    monkeypatch.setenv(caches.FOLDER, str(tmp_path / "named"))
    monkeypatch.setenv(caches.LIMIT, "3m")
    store = ArtifactCache.open(True)
    assert (store.folder, store.limit) == (tmp_path / "named", 3 << 20)
    assert ArtifactCache.open(None) is ArtifactCache.open(False) is None
    monkeypatch.delenv(caches.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert ArtifactCache.open(True).folder == tmp_path / "home" / "tvm_fusion"
