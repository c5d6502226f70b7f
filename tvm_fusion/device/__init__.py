"""Devices and targets: what there is, and what to compile for. Importing this needs no TVM."""

from .architecture import choose_arch
from .model import Device, MatrixInstruction
from .parse import device_of, parse
from .probe import cuda_devices, host_cpu, rocm_devices
from .table import GPUS
from .target import TargetSpec, shared_archs

__all__ = [
    "GPUS",
    "Device",
    "MatrixInstruction",
    "TargetSpec",
    "choose_arch",
    "cuda_devices",
    "device_of",
    "host_cpu",
    "parse",
    "rocm_devices",
    "shared_archs",
]
