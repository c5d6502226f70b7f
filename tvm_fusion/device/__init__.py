"""Devices and targets: what there is, and what to compile for. Importing this needs no TVM."""

from .model import Device
from .parse import parse
from .probe import cuda_devices, host_cpu, rocm_devices
from .table import GPUS
from .target import TargetSpec

__all__ = ["GPUS", "Device", "TargetSpec", "cuda_devices", "host_cpu", "parse", "rocm_devices"]
