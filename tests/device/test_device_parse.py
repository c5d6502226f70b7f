import inspect
import subprocess
import sys

import pytest
import tvm
from tvm.target import Target

from tvm_fusion.device import GPUS, TargetSpec, cpu, parse, probe
from tvm_fusion.device.model import Device
from tvm_fusion.errors import UserError


def test_importing_and_parsing_gpus_needs_no_tvm():
    program = (
        "import sys; from tvm_fusion.device import parse; "
        "parse('cuda:sm_80'); parse('rocm:gfx942'); assert 'tvm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "text",
    [
        "cpu",
        "cpu:x86-64",
        "cpu:x86-64-v3",
        "cpu:skylake-avx512,-avx512f",
        "cpu:aarch64",
        "cpu:neoverse-n1",
        "cuda:sm_80,sm_90a",
        "rocm:gfx90a,gfx942",
        "rocm:gfx1100",
    ],
)
def test_text_and_tvm_target_read_back_as_the_same(text):
    spec = parse(text)
    assert parse(spec) is spec
    assert parse(spec.text) == spec
    assert parse(spec.tvm_target()) == spec
    assert [one.text for one in spec.each] == [parse(one.tvm_target()).text for one in spec.each]


@pytest.fixture
def this_machine(monkeypatch):
    """Let ``cpu`` be this machine's CPU, whatever ``TESTS_CPU`` names."""
    monkeypatch.setattr(cpu, "host", inspect.unwrap(cpu.host))


def test_llvm_means_this_machine_with_its_features_and_threads(this_machine):
    spec = parse("llvm")
    assert spec == parse("cpu")
    assert spec.device.features == probe.host_cpu().features
    assert dict(*spec.attrs)["num-cores"] == spec.device.cores == probe.host_cpu().cores
    assert spec.archs != ("generic",)


def test_features_that_a_hypervisor_hides_are_taken_out(this_machine, monkeypatch):
    from tvm.target import codegen

    nominal = parse("cpu:skylake-avx512").device.features
    shown = tuple(feature for feature in nominal if not feature.startswith("avx512"))
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "skylake-avx512")
    monkeypatch.setattr(probe, "machine", lambda: "x86_64")
    fake = Device("llvm", "x86_64", "a virtual CPU", shown, cores=3)
    monkeypatch.setattr(probe, "host_cpu", lambda: fake)
    spec = parse("cpu")
    assert "-avx512f" in dict(*spec.attrs)["mattr"]
    assert spec.device.features == shown
    assert (spec.device.cores, spec.device.vector_bits) == (3, 256)


def test_vector_width_is_that_of_the_features():
    widths = {
        "x86-64": 128,
        "x86-64-v3": 256,
        "skylake-avx512": 512,
        "skylake-avx512,-avx512f": 256,
    }
    widths |= {"neoverse-n1": 128, "neoverse-v1": 256, "a64fx": 512}
    for name, bits in widths.items():
        spec = parse(f"cpu:{name}")
        assert spec.device.vector_bits == bits
        assert spec.tvm_target().attrs["vector-width"] == bits


@pytest.mark.skipif(probe.machine() != "x86_64", reason="cross-compiles from x86")
def test_an_arm_name_brings_the_arm_triple_to_host_and_target():
    spec = parse("cpu:neoverse-n1")
    target = spec.tvm_target()
    assert spec.triple == "aarch64-linux-gnu"
    assert target.attrs["mtriple"] == target.host.attrs["mtriple"] == "aarch64-linux-gnu"
    assert parse("cpu:x86-64-v3").triple is None


def test_a_tvm_target_is_taken_at_its_word():
    assert parse({"kind": "llvm", "mcpu": "x86-64-v3"}).text == "cpu:x86-64-v3"
    assert parse(Target({"kind": "cuda", "arch": "sm_90a"})).text == "cuda:sm_90a"
    assert parse({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}).text == "cpu:aarch64"


def test_architectures_ascend_and_kernels_of_all_keep_to_the_least_limits():
    spec = parse("cuda:sm_90a, sm_86,sm_80,sm_86")
    assert spec.archs == ("sm_80", "sm_86", "sm_90a")
    assert [one.text for one in spec.each] == ["cuda:sm_80", "cuda:sm_86", "cuda:sm_90a"]
    assert spec.of(("sm_90a", "sm_80")).text == "cuda:sm_80,sm_90a"
    assert spec.each[2].tvm_target().attrs["max_shared_memory_per_block"] == 227 * 1024
    attrs = spec.tvm_target().attrs
    assert attrs["arch"] == "sm_80"
    # The lowest architecture is not the one with the least shared memory.
    assert attrs["max_shared_memory_per_block"] == 99 * 1024 < GPUS["sm_80"].shared_memory_per_block
    assert attrs["l2_cache_size_bytes"] == GPUS["sm_86"].l2_bytes


def test_cpus_ascend_each_with_its_changes():
    spec = parse("cpu:sapphirerapids,-amx-tile,x86-64-v3,x86-64-v4,+avx512bf16,x86-64-v3")
    assert spec.archs == ("x86-64-v3", "x86-64-v4+avx512bf16", "sapphirerapids-amx-tile")
    assert spec.text == "cpu:x86-64-v3,x86-64-v4,+avx512bf16,sapphirerapids,-amx-tile"
    assert parse(spec.text) == spec
    lowest, middle, highest = spec.each
    assert "avx512f" not in lowest.device.features
    assert "avx512bf16" in middle.device.features
    assert not highest.device.matrix_instructions
    assert "+avx512bf16" in list(middle.tvm_target().attrs["mattr"])
    assert spec.tvm_target().attrs["mcpu"] == lowest.tvm_target().attrs["mcpu"] == "x86-64-v3"


def test_the_table_wins_over_a_wrong_device_query():
    stock = Target({"kind": "cuda", "arch": "sm_90a", "max_shared_memory_per_block": 49152})
    assert parse(stock).tvm_target().attrs["max_shared_memory_per_block"] == 227 * 1024


def test_rocm_waits_before_barriers_and_knows_its_wave_size():
    for arch, lanes in (("gfx90a", 64), ("gfx942", 64), ("gfx1100", 32)):
        attrs = parse(f"rocm:{arch}").tvm_target().attrs
        assert "-back-off-barrier" in list(attrs["mattr"])
        assert attrs["thread_warp_size"] == lanes
        assert attrs["mcpu"] == arch


def test_a_present_device_is_the_default_and_refines_the_table(monkeypatch):
    present = Device("cuda", "sm_90a", "H200", **_limits(sm_count=132, l2_bytes=60 << 20))
    monkeypatch.setattr(probe, "cuda_devices", lambda: (present,))
    assert parse("cuda").text == "cuda:sm_90a"
    assert parse("cuda:sm_80,sm_90a").devices == (GPUS["sm_80"], present)


def _limits(**figures):
    names = ("max_threads_per_block", "shared_memory_per_block", "registers_per_block", "warp_size")
    return {name: getattr(GPUS["sm_90a"], name) for name in names} | figures


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(probe, "cuda_devices", lambda: ())
    monkeypatch.setattr(probe, "rocm_devices", lambda: ())


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("opencl", ["'opencl'", "cuda:<sm_..>"]),
        ("cdua:sm_80", ["'cdua:sm_80'", "did you mean cuda"]),
        ("cuda", ["no such device", "sm_100", "cuda:sm_80"]),
        ("rocm", ["no such device", "gfx942"]),
        ("cuda:", ["empty name"]),
        ("cuda:sm_80,", ["empty name"]),
        ("cuda:sm_91", ["'sm_91'", "did you mean sm_90"]),
        ("cuda:sm_50", ["'sm_50'", "sm_75"]),
        ("rocm:gfx943", ["'gfx943'", "did you mean gfx942"]),
        ("rocm:gfx1030", ["refused", "no figures", "gfx1100"]),
        ("rocm:gfx950", ["refused", "LLVM 19", "no kernel was verified"]),
        ("rocm:gfx1200", ["refused", "barriers"]),
        ("rocm:gfx1201", ["refused", "barriers"]),
        ("rocm:gfx942,gfx1030", ["'gfx1030'", "refused"]),
        ("rocm:sm_80", ["unknown rocm architecture 'sm_80'"]),
        ("sm_80", ["write cuda:sm_80"]),
        ("cpu:skylke", ["'skylke'", "did you mean skylake"]),
        ("cpu:skylake,-avx51f", ["'-avx51f'", "avx512f"]),
        ("cpu:skylake,avx2", ["'avx2'", "a sign"]),
        ("cpu:skylake,neoverse-n1", ["several families", "an artifact for each family"]),
        ({"kind": "llvm", "mcpu": "nosuchcpu"}, ["'nosuchcpu'"]),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, ["riscv64", "x86_64 or aarch64"]),
        ({"kind": "metal"}, ["'metal'", "cuda:<sm_..>"]),
        ({"kind": "nosuchkind"}, ["nosuchkind"]),
        ({"kind": "cuda", "arch": "sm_80", "colour": 3}, ["colour"]),
        (7, ["7"]),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(target, words):
    with pytest.raises(UserError) as caught:
        parse(target)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["cpu", "cpu:neoverse-n1", "cuda:sm_80,sm_90a", "rocm:gfx942"])
def test_the_spec_is_hashable(text):
    assert {parse(text), parse(text)} == {parse(text)}
    assert isinstance(parse(text), TargetSpec)


def test_tvm_still_accepts_nonsense_and_calls_every_x86_cpu_512_bits_wide():
    # The reasons for checking names and widths here; when this fails, TVM has learnt both.
    from tvm.target import codegen

    Target({"kind": "llvm", "mcpu": "nosuchcpu"})
    triple = "x86_64-linux-gnu"
    old = Target({"kind": "llvm", "mcpu": "nehalem", "mtriple": triple})
    assert codegen.llvm_get_vector_width(old) == 512
    assert tvm.__version__.startswith("0.27")
