"""Devices and targets: what there is, and what to compile for. Importing this needs no TVM."""

from .architecture import choose_arch
from .cpu import measured_as
from .model import Device, MatrixInstruction
from .parse import device_of, parse
from .probe import cuda_devices, host_cpu, rocm_devices
from .table import GPUS
from .target import TargetSpec, archs_of

__all__ = [
    "GPUS",
    "Device",
    "MatrixInstruction",
    "TargetSpec",
    "archs_of",
    "choose_arch",
    "cuda_devices",
    "device_of",
    "host_cpu",
    "measured_as",
    "parse",
    "rocm_devices",
]
