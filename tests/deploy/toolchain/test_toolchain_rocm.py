import functools
import json
import re
import subprocess
import sys

import pytest
import tvm
from device_code import EM_AMDGPU, elf_flags, unguarded_barriers
from tvm import te, tirx
from tvm.target import Target

from tvm_fusion.deploy.toolchain import rocm, rocm_math, toolchain
from tvm_fusion.deploy.toolchain.rocm_code import amd_modules, kernels
from tvm_fusion.deploy.toolchain.rocm_threads import compile_ir, texts_of, with_threads
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

needs_lld = [
    pytest.mark.rocm_toolchain,
    pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found"),
]
needs_ocml = [
    *needs_lld,
    pytest.mark.skipif(not rocm_math.find_ocml("gfx942"), reason="AMD's OCML was not found"),
]
# EF_AMDGPU_MACH of an AMD object's flags (LLVM's AMDGPU usage guide).
MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx1100": 0x41}


def _map(function, dtype, lanes=1, arity=1):
    """A kernel that applies a function to each of 64 elements, `lanes` at a time."""
    inputs = [te.placeholder((64,), dtype, name=f"x{i}") for i in range(arity)]
    output = te.compute((64,), lambda i: function(*(x[i] for x in inputs)), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([*inputs, output]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    if lanes > 1:
        loop, inner = schedule.split(loop, [None, lanes])
        schedule.vectorize(inner)
    schedule.bind(loop, "threadIdx.x")
    return schedule.mod


def _reverse():
    """A kernel whose threads read what other threads wrote to shared memory."""
    x = te.placeholder((3, 256), "float32", name="x")
    y = te.compute((3, 256), lambda b, i: x[b, 255 - i], name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    block = schedule.get_sblock("y")
    shared = schedule.cache_read(block, 0, "shared")
    row, _ = schedule.get_loops(block)
    schedule.compute_at(shared, row)
    schedule.bind(row, "blockIdx.x")
    for stage in (shared, block):
        schedule.bind(schedule.get_loops(stage)[-1], "threadIdx.x")
    return schedule.mod


def _assembly(built):
    def below(module):
        yield module
        for imported in module.imports:
            yield from below(imported)

    kinds = [module for module in below(built.mod) if module.kind == "hip"]
    return "\n".join(module.inspect_source("asm") for module in kinds)


def _vector_instructions(assembly):
    return len(re.findall(r"^\s+v_\w+", assembly, re.MULTILINE))


def _build(mod, arch, target=None):
    spec = parse(f"rocm:{arch}")
    with toolchain(spec):
        return tvm.compile(mod, target or spec.tvm_target())


@pytest.mark.parametrize("arch", [pytest.param(a, marks=needs_lld) for a in MACHINES])
def test_an_exported_library_holds_a_code_object_of_the_architecture(arch, tmp_path):
    spec = parse(f"rocm:{arch}")
    library = tmp_path / "model.so"
    with toolchain(spec) as tools:
        built = tvm.compile(_reverse(), spec.tvm_target())
        built.export_library(str(library), fcompile=tools.link)
    (flags,) = elf_flags(library.read_bytes(), EM_AMDGPU)
    assert flags & 0xFF == MACHINES[arch]
    assert "lld" in tools.device_compiler


@pytest.mark.parametrize("arch", [pytest.param(a, marks=needs_lld) for a in MACHINES])
def test_waves_wait_for_their_shared_memory_writes_before_a_barrier(arch):
    assembly = _assembly(_build(_reverse(), arch))
    assert "s_barrier" in assembly
    assert unguarded_barriers(assembly) == 0
    # The wave size in the metadata is the one that schedules use.
    assert f".wavefront_size: {parse(f'rocm:{arch}').device.warp_size}" in assembly


@pytest.mark.parametrize("arch", [pytest.param(a, marks=needs_lld) for a in MACHINES])
def test_without_our_feature_the_wait_is_still_missing(arch):
    # When this fails, LLVM waits by itself and `-back-off-barrier` can go.
    lanes = parse(f"rocm:{arch}").device.warp_size
    stock = Target({"kind": "rocm", "mcpu": arch, "thread_warp_size": lanes}, host="llvm")
    assert unguarded_barriers(_assembly(_build(_reverse(), arch, stock))) > 0


@pytest.mark.parametrize("arch", [pytest.param("gfx1201", marks=needs_lld)])
def test_the_refused_architecture_waits_for_nothing(arch):
    # What the refusal says of it: when this fails, gfx12 can be allowed.
    config = {"kind": "rocm", "mcpu": arch, "thread_warp_size": 32, "mattr": ["-back-off-barrier"]}
    with toolchain(parse("rocm:gfx1100")):
        built = tvm.compile(_reverse(), Target(config, host="llvm"))
    assert unguarded_barriers(_assembly(built)) > 0


def _with_threads(arch, count):
    """A target whose blocks have more threads than TVM assumes where it sees no device."""
    config = json.loads(str(parse(f"rocm:{arch}").tvm_target()))
    del config["host"]
    return Target({**config, "max_threads_per_block": count}, host="llvm")


@pytest.mark.parametrize("arch", [pytest.param(a, marks=needs_lld) for a in MACHINES])
def test_code_is_for_the_threads_of_its_target(arch, tmp_path):
    library = tmp_path / "model.so"
    with toolchain(parse(f"rocm:{arch}")) as tools:
        built = tvm.compile(_reverse(), _with_threads(arch, 512))
        (module,) = amd_modules(built.mod)
        text, assembly = texts_of(module)
        built.export_library(str(library), fcompile=tools.link)
    assert '"amdgpu-flat-work-group-size"="1,512"' in text
    assert [kernel.threads for kernel in kernels(assembly)] == [512]
    found = re.findall(rb"max_flat_workgroup_size\xcd(..)", library.read_bytes(), re.DOTALL)
    assert found == [(512).to_bytes(2, "big")]  # as MessagePack has it


@pytest.mark.parametrize("arch", [pytest.param(a, marks=needs_lld) for a in MACHINES])
def test_code_is_that_of_a_machine_without_a_device(arch):
    """IR that TVM writes where a ROCm runtime is, brought back to the target's threads."""
    with toolchain(parse(f"rocm:{arch}")):
        target = parse(f"rocm:{arch}").tvm_target()
        (module,) = amd_modules(tvm.compile(_reverse(), target).mod)
        text, assembly = texts_of(module)
        others = with_threads(text, "1,1024")
        assert compile_ir(with_threads(others, "1,256"), target)[1] == assembly
        assert compile_ir(others, target)[1] != assembly


@functools.cache
def _instructions_of_a_copy(dtype, lanes):
    return _vector_instructions(_assembly(_build(_map(lambda x: x, dtype, lanes), "gfx942")))


@functools.cache
def _instructions_of_a_sum():
    added = _build(_map(lambda a, b: a + b, "float64", arity=2), "gfx1100")
    return _vector_instructions(_assembly(added))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "function", [pytest.param(f, marks=needs_ocml) for f in ("tan", "log1p", "exp", "tanh")]
)
def test_missing_and_double_precision_functions_come_from_ocml(function, lanes, dtype):
    assembly = _assembly(_build(_map(getattr(tirx, function), dtype, lanes), "gfx942"))
    assert "__ocml" not in assembly  # linked and inlined
    assert _vector_instructions(assembly) > _instructions_of_a_copy(dtype, lanes)


@pytest.mark.parametrize(
    "function", [pytest.param(f, marks=needs_ocml) for f in ("pow", "atan2", "hypot", "fmod")]
)
def test_functions_of_two_arguments_come_from_ocml(function):
    assembly = _assembly(_build(_map(getattr(tirx, function), "float64", arity=2), "gfx1100"))
    assert "__ocml" not in assembly
    assert _vector_instructions(assembly) > _instructions_of_a_sum()


@pytest.mark.parametrize("arch", [pytest.param(a, marks=needs_ocml) for a in MACHINES])
def test_each_architecture_finds_its_device_library(arch):
    names = [path.stem for path in rocm_math.find_ocml(arch)]
    assert names[0] == "ocml"
    wave = "off" if parse(f"rocm:{arch}").device.warp_size == 32 else "on"
    assert f"oclc_wavefrontsize64_{wave}" in names
    assert "oclc_unsafe_math_off" in names


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        pytest.param(*case, marks=needs_lld)
        for case in [("tan", "float32"), ("exp", "float64"), ("sigmoid", "float64")]
    ],
)
def test_without_the_device_library_one_sentence_names_the_apt_line(function, dtype, monkeypatch):
    monkeypatch.setattr(rocm_math, "find_ocml", lambda arch: ())
    with pytest.raises(UserError) as caught:
        _build(_map(getattr(tirx, function), dtype), "gfx942")
    message = str(caught.value)
    assert message.endswith("; run `apt-get install -y rocm-device-libs`.")
    assert f"of {dtype} on gfx942 needs AMD's device library" in message
    assert "\n" not in message


@pytest.mark.parametrize("function", [pytest.param("exp", marks=needs_lld)])
def test_float32_needs_no_device_library(function, monkeypatch):
    monkeypatch.setattr(rocm_math, "find_ocml", lambda arch: ())
    assert "v_exp_f32" in _assembly(_build(_map(getattr(tirx, function), "float32"), "gfx942"))


@pytest.mark.slow
@pytest.mark.parametrize("function", [pytest.param("exp", marks=needs_lld)])
def test_stock_tvm_still_dies_of_double_precision(function):
    # When this fails, the float64 half of rocm_math can go.
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
import tvm; from tvm import tirx; from tvm.target import Target
from test_toolchain_rocm import _map
mod = _map(tirx.{function}, "float64")
import tvm_ffi
tvm_ffi.register_global_func("tvm_callback_rocm_bitcode_path", lambda *_: [], override=True)
tvm.compile(mod, Target({{"kind": "rocm", "mcpu": "gfx942"}}, host="llvm"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "no libcall available" in done.stderr


def test_outside_of_a_toolchain_tvm_lowers_as_ever():
    with rocm_math.device_math(["gfx942"]):
        pass
    call = tirx.exp(tirx.Var("x", "float64"))
    rule = tvm.ir.Op.get("tirx.exp").get_attr("rocm.FLowerIntrinsic")
    assert "__ocml" not in str(rule(call))
    call = tirx.tan(tirx.Var("x", "float32"))
    rule = tvm.ir.Op.get("tirx.tan").get_attr("rocm.FLowerIntrinsic")
    assert rule(call).same_as(call)


def test_no_linker_names_the_apt_line_before_any_work(monkeypatch):
    monkeypatch.setattr(rocm, "find_lld", lambda: None)
    with pytest.raises(UserError, match="lld-19"), toolchain(parse("rocm:gfx942")):
        pytest.fail("the block ran")


def _fake_lld(folder, name, version):
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Debian LLD {version} (compatible with GNU linkers)'\n")
    path.chmod(0o755)
    return str(path)


def test_an_lld_too_old_for_the_objects_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(rocm, "find_spec", lambda name: None)
    _fake_lld(tmp_path, "ld.lld", "16.0.6")
    assert rocm.find_lld() is None
    newer = _fake_lld(tmp_path, "ld.lld-20", "20.1.2")
    assert rocm.find_lld() == (newer,)


@pytest.mark.parametrize("data", [pytest.param(b"not an object", marks=needs_lld)])
def test_what_lld_says_is_shown(data):
    with pytest.raises(RuntimeError, match="lld failed"):
        rocm.link_code_object(rocm.find_lld(), data)
