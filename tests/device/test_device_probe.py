import ctypes
import os
import subprocess

import pytest

from tvm_fusion.device import GPUS, probe
from tvm_fusion.device.cpu_features import CPU_FEATURES

# A stand-in for the NVIDIA driver that shows one H200: attributes by number (cuda.h).
_DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  strncpy(name, "NVIDIA H200", size);
  return 0;
}
int cuDeviceGetAttribute(int *value, int number, int device) {
  switch (number) {
    case 1: *value = 1024; return 0;
    case 10: *value = 32; return 0;
    case 12: *value = 65536; return 0;
    case 16: *value = 66; return 0;
    case 36: *value = 3201000; return 0;
    case 37: *value = 6144; return 0;
    case 38: *value = 62914560; return 0;
    case 75: *value = 9; return 0;
    case 76: *value = 0; return 0;
    case 97: *value = 232448; return 0;
  }
  return 1;
}
"""


def test_host_cpu_reports_what_linux_shows():
    cpu = probe.host_cpu()
    assert cpu.cores == len(os.sched_getaffinity(0))
    assert cpu.arch == probe.machine()
    assert set(cpu.features) <= CPU_FEATURES
    assert cpu.features == tuple(sorted(cpu.features))
    if cpu.l2_bytes and cpu.l3_bytes:
        assert cpu.l2_bytes < cpu.l3_bytes


def test_arm_features_get_llvm_names(monkeypatch):
    info = "processor : 0\nFeatures\t: fp asimd asimdhp asimddp atomics crc32 sve\n"
    monkeypatch.setattr(probe, "machine", lambda: "aarch64")
    monkeypatch.setattr(probe, "_read", lambda path: info if path.name == "cpuinfo" else "")
    cpu = probe.host_cpu.__wrapped__()
    assert cpu.features == ("dotprod", "fullfp16", "lse", "neon", "sve")
    assert cpu.vector_bits == 128


def test_a_device_refines_the_table(monkeypatch, tmp_path):
    library = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=_DRIVER, text=True, check=True)
    load = ctypes.CDLL
    monkeypatch.setattr(probe.ctypes, "CDLL", lambda name: load(str(library)))
    (device,) = probe.cuda_devices()
    table = GPUS["sm_90a"]
    assert (device.name, device.arch) == ("NVIDIA H200", "sm_90a")
    assert device.shared_memory_per_block == 232448
    assert device.l2_bytes == 62914560
    assert device.memory_bandwidth == pytest.approx(4.9e12, rel=0.01)
    assert device.registers_per_block == table.registers_per_block
    # Half the multiprocessors of the table's board: half its rate.
    assert device.peak_flops["float16"] == table.peak_flops["float16"] / 2


def test_no_driver_means_no_device(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(probe.ctypes, "CDLL", missing)
    assert probe.cuda_devices() == ()


@pytest.mark.parametrize(
    ("version", "arch"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")]
)
def test_amd_devices_come_from_the_kernel_driver(monkeypatch, tmp_path, version, arch):
    for node, fields in (
        ("0", "cpu_cores_count 64\ngfx_target_version 0\n"),
        ("1", f"simd_count 1216\nsimd_per_cu 4\ngfx_target_version {version}\n"),
    ):
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(fields)
    monkeypatch.setattr(probe, "_KFD", tmp_path)
    (device,) = probe.rocm_devices()
    assert device.arch == arch
    assert device.sm_count == 304
    assert device.warp_size == GPUS[arch].warp_size
