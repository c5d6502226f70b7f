"""One artifact for several architectures: the kernels of each, equal ones once."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import tvm
from architectures_model import model
from device_code import EM_AMDGPU, cuda_archs, elf_flags
from relax_modules import main_module
from tvm import relax

import tvm_fusion
from tvm_fusion.core.constants.weight_names import Packing
from tvm_fusion.deploy.build.build import build, export_library, merge, store
from tvm_fusion.deploy.build.lower import LowerToVM
from tvm_fusion.deploy.build.prepare import Prepared
from tvm_fusion.deploy.runtime import load as load_module
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.deploy.toolchain import rocm
from tvm_fusion.device import TargetSpec, parse, probe
from tvm_fusion.errors import UserError
from tvm_fusion.pipeline import stages
from tvm_fusion.schedule.stage.launches import launches

HERE = Path(__file__).parent
TARGET = "cuda:sm_75,sm_80,sm_86,sm_90a"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What a model compiled for `TARGET` launches on made-up devices."""
    sys.path.insert(0, str(HERE.parent / "count"))
    try:
        from fake_cuda.build import build as build_stand_ins
    finally:
        del sys.path[0]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for CUDA needs a C compiler")
    folder = tmp_path_factory.mktemp("architectures")
    build_stand_ins(compiler, folder)
    devices = "sm_75,sm_80,sm_86,sm_87,sm_90a"
    command = [sys.executable, str(HERE / "load_on_fake.py"), str(folder), TARGET, devices]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_profile_launches_the_kernels_of_a_graph_one_by_one(loaded):
    for device, found in loaded["loaded"].items():
        profile = found["profile"]
        names = [name for row in profile["rows"] for name in row["kernels"]]
        assert len(names) == found["counted"]
        assert {f"{name}_kernel" for name in names} == set(found["code"])
        assert found["graph_launches"] == 1
        assert [row["title"] for row in profile["rows"]] == ["matmul", "softmax"] * 3
        assert all(row["us"] == pytest.approx(1, rel=1e-3) for row in profile["rows"])
        assert {row["dtype"] for row in profile["rows"]} == {"float16", "float32"}
        assert profile["launched_us"] > 0
        assert profile["streamed_us"] > 0
        assert profile["gaps_us"] is None  # events make gaps
        assert (profile["clock"], profile["threads"]) == ("cuda events", 0)
        assert profile["device"] != device
        assert profile["rates"]["peak_from"] == "published"


@pytest.mark.parametrize(
    ("device", "product", "rows"),
    [
        ("sm_75", "sm_75", "sm_75,sm_80,sm_86"),
        ("sm_80", "sm_80,sm_86", "sm_75,sm_80,sm_86"),
        ("sm_86", "sm_80,sm_86", "sm_75,sm_80,sm_86"),
        ("sm_87", "sm_80,sm_86", "sm_75,sm_80,sm_86"),
        ("sm_90a", "sm_90a", "sm_90a"),
    ],
)
@pytest.mark.slow
def test_a_device_gets_the_kernels_that_are_best_for_it(loaded, device, product, rows):
    """Asynchronous copies from sm_80 on, and from sm_90 on kernels that launch early."""
    found = loaded["loaded"][device]
    code = {name.split("_sm")[0].removeprefix("fused_"): a for name, a in found["code"].items()}
    assert code == {"matmul1": product, "softmax1": rows}
    assert found["graph_launches"] == 1
    assert found["counted"] == 6


@pytest.mark.slow
def test_the_manifest_says_what_is_stored(loaded):
    found = loaded["manifest"]
    assert found["target"]["archs"] == ["sm_75", "sm_80", "sm_86", "sm_90a"]
    assert found["suffix"] == "@sm_75"
    assert list(found["architectures"]) == ["sm_80", "sm_86", "sm_90a"]
    stored = {",".join(e["archs"]): len(e["names"]) for e in found["stored_kernels"]}
    assert stored == {"sm_75": 1, "sm_75,sm_80,sm_86": 1, "sm_80,sm_86": 1, "sm_90a": 2}


@pytest.mark.slow
def test_weights_are_stored_once(loaded):
    found = loaded["manifest"]
    for other in found["architectures"].values():
        assert other["weights"] == found["weights"]
    size = sum(entry["bytes"] for entry in found["weights"].values())
    assert found["files"]["weights.bin"]["bytes"] == size


@pytest.mark.slow
def test_the_entries_of_an_architecture_take_their_places(loaded):
    found = loaded["manifest"]
    assert manifest.of_architecture(found, "sm_75") == found
    own = manifest.of_architecture(found, "sm_90a")
    assert own["suffix"] == "@sm_90a"
    assert own["functions"]["main"]["inputs"] == found["functions"]["main"]["inputs"]


def lowered(mod, spec):
    passes = tvm.ir.transform.Sequential([*stages(), LowerToVM()])
    with spec.tvm_target():
        return passes(mod)


def primitives(mod):
    return {g.name_hint: f for g, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}


def test_kernels_are_those_of_each_architecture_compiled_alone():
    spec = parse("cuda:sm_75,sm_80")
    mods = {one.archs[0]: lowered(model(), one) for one in spec.each}
    merged = merge(mods, spec)
    funcs = primitives(merged.mod)
    names = [name for group in merged.kernels.values() for name in group]
    assert sorted(n for n in funcs if launches(funcs[n])) == sorted(names)
    for arch, mod in mods.items():
        for old, func in primitives(mod).items():
            plain = funcs[merged.names[arch][old]].without_attr("target")
            new = plain.with_attr("global_symbol", str(func.attrs["global_symbol"]))
            tvm.ir.assert_structural_equal(new, func)
        assert merged.names[arch]["main"] == f"main@{arch}"
    texts = {key: [funcs[name].script() for name in group] for key, group in merged.kernels.items()}
    assert "cp_async" not in "".join(texts["sm_75",])
    assert "cp_async" in "".join(texts["sm_80",])
    both = funcs[merged.kernels["sm_75", "sm_80"][0]].attrs["target"]
    assert parse(both) == spec


def test_amd_shares_no_kernels():
    spec = parse("rocm:gfx90a,gfx942")
    mods = {one.archs[0]: lowered(model(), one) for one in spec.each}
    kernels = merge(mods, spec).kernels
    assert {key: len(names) for key, names in kernels.items()} == {("gfx90a",): 2, ("gfx942",): 2}


def sum_of(constant):
    """A kernel that two models share, and one with a constant of its own."""
    x = relax.Var("x", relax.TensorType((5, 7), "float32"))

    def result(emit, *_):
        row = emit(relax.op.cumsum(emit(relax.op.exp(x)), 1))
        total = emit(relax.op.sum(row, 0))
        return relax.op.add(total, relax.const(constant, "float32"))

    return main_module([x], result)


def test_a_merged_library_computes_what_each_module_does(tmp_path):
    """On this CPU, under two names for it."""
    (device,) = parse("cpu").devices
    spec = TargetSpec("llvm", ("one", "other"), (device, device), parse("cpu").attrs * 2)
    parts = {
        name: prepared([1], mod=lowered(sum_of(constant), parse("cpu")))
        for name, constant in (("one", 3.0), ("other", 5.0))
    }
    built = build(parts, spec)
    shared = built.kernels.get(("one", "other"), [])
    assert shared
    assert built.kernels["one",]
    export_library(built.compiled, spec, tmp_path / "model.so")
    machine = relax.VirtualMachine(tvm.runtime.load_module(tmp_path / "model.so"), tvm.cpu())
    x = np.random.default_rng().standard_normal((5, 7)).astype("float32")
    for name, constant in (("one", 3.0), ("other", 5.0)):
        expected = np.exp(x.astype("float64")).cumsum(1).sum(0) + constant
        result = machine[f"main{built.suffixes[name]}"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_a_cpu_gets_the_best_code_that_runs_there(tmp_path, monkeypatch):
    """Of one library; a CPU in between gets that of the next lower one."""
    folder = tvm_fusion.compile(
        tiny_models.dense(), "cpu:x86-64-v4,x86-64-v3,+avxvnni,x86-64-v3", dims={"batch": 3}
    ).export(tmp_path / "a")
    found = manifest.read(folder)
    assert found["target"]["archs"] == ["x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4"]
    assert "avxvnni" in found["architectures"]["x86-64-v3+avxvnni"]["features"]
    assert sorted(e["archs"][0] for e in found["stored_kernels"]) == found["target"]["archs"]
    data = tiny_models.dense_data(3)
    expected = tiny_models.dense_expected(data, **tiny_models.dense_weights())
    for name in ("x86-64-v3", "x86-64-v4", "x86-64-v3,+avx512f"):
        device = parse(f"cpu:{name}").device
        if not set(device.features) <= set(probe.host_cpu().features):
            continue
        monkeypatch.setattr(load_module, "host_cpu", lambda device=device: device)
        loaded = load_module.load.__wrapped__(folder)
        assert loaded.manifest["suffix"] == "@" + name.split(",")[0]
        assert loaded.manifest["target"]["features"] == needed(found, name.split(",")[0])
        result = loaded(data=data)["scores"]
        assert np.abs(result - expected).max() < 1e-5 * np.abs(expected).max()
    oldest = parse("cpu:x86-64").device
    monkeypatch.setattr(load_module, "host_cpu", lambda: oldest)
    with pytest.raises(UserError, match="without avx, avx2"):
        load_module.load(folder)


def needed(found, arch):
    return manifest.of_architecture(found, arch)["target"]["features"]


def test_weights_that_two_cpus_pack_alike_are_stored_once(tmp_path):
    """As are those that no kernel packs."""
    target = "cpu:x86-64-v3,x86-64-v4,skylake-avx512"
    found = manifest.read(
        tvm_fusion.compile(tiny_models.dense(), target, dims={"batch": 3}).export(tmp_path / "a")
    )
    (name,) = found["weights"]
    offsets = [manifest.of_architecture(found, a)["weights"][name]["offset"] for a in names(found)]
    assert offsets[1] == offsets[2] != offsets[0]


def names(found):
    return found["target"]["archs"]


def prepared(packed, packing=None, mod=None):
    packings = {} if packing is None else {"w": Packing(packing, (2, 3))}
    weights = {"w": np.array(packed, "float32"), "b": np.arange(4.0)}
    target = parse("cpu").tvm_target()
    return Prepared(mod or tvm.IRModule(), weights, {}, packings, target, {}, {})


def test_a_weight_that_is_packed_otherwise_is_stored_again():
    parts = {"a": prepared([1, 2], "pack0"), "b": prepared([2, 1], "pack0"), "c": prepared([1, 2])}
    stored, used = store(parts, {"a": {}, "b": {"pack0": "pack0_b"}, "c": {}})
    assert sorted(stored) == ["b", "w", "w@b"]
    assert [used[arch]["w"].label for arch in "abc"] == ["w", "w@b", "w"]
    assert used["a"]["w"].packing.function == "pack0"
    assert used["b"]["w"].packing.function == "pack0_b"
    assert used["c"]["w"].packing is None


def test_explain_takes_one_architecture():
    from tvm_fusion.report.planned import plan_model

    with pytest.raises(UserError, match="names 2 architectures, each with a plan; expected one;"):
        plan_model(model(), "cuda:sm_80,sm_90a")


def test_inspect_lists_architectures(loaded, capsys):
    from rich.console import Console

    from tvm_fusion.cli.commands import inspect

    result = {**loaded["manifest"], "kernels": 6, "calls": 6, "intermediate_bytes": 0}
    result["explain"] = None
    inspect.show(result, Console(width=200))
    shown = capsys.readouterr().out
    for line in (
        "function main on sm_75: 6 kernels in",
        "function main on sm_90a: 6 kernels in",
        "stored   1 kernel for sm_75, sm_80, sm_86",
        "stored   2 kernels for sm_90a",
    ):
        assert line in shown


@pytest.mark.cuda_toolchain
def test_a_cuda_library_holds_machine_code_of_each_kernel_once(tmp_path):
    archs = ("sm_75", "sm_80", "sm_86")
    folder = tvm_fusion.compile(model(), f"cuda:{','.join(archs)}").export(tmp_path / "a")
    # A product for sm_75, one for both others, rows for all three.
    assert cuda_archs((folder / "model.so").read_bytes()) == [75, 75, 80, 80, 86, 86]


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
def test_a_rocm_library_holds_a_code_object_of_each_architecture(tmp_path):
    folder = tvm_fusion.compile(model(), "rocm:gfx90a,gfx942").export(tmp_path / "a")
    flags = elf_flags((folder / "model.so").read_bytes(), EM_AMDGPU)
    assert sorted(flag & 0xFF for flag in flags) == [0x3F, 0x4C]  # EF_AMDGPU_MACH
    assert list(manifest.read(folder)["architectures"]) == ["gfx942"]
