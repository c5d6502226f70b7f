"""Compile the counting stand-ins for the CUDA driver and runtime, and load them."""

import ctypes
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
DRIVER, RUNTIME = "libcuda.so.1", "libcudart.so.13"


def build(compiler: str, folder: Path) -> None:
    common = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    driver, runtime = folder / DRIVER, folder / RUNTIME
    subprocess.run(
        [*common, f"-Wl,-soname,{DRIVER}", str(HERE / "driver.c"), "-o", str(driver)], check=True
    )
    subprocess.run(
        [
            *common,
            f"-Wl,-soname,{RUNTIME}",
            f"-Wl,--version-script={HERE / 'runtime.map'}",
            str(HERE / "runtime.c"),
            str(driver),
            "-o",
            str(runtime),
        ],
        check=True,
    )


def load(folder: Path) -> ctypes.CDLL:
    """Make them the process's CUDA. Must come before TVM is imported."""
    driver = ctypes.CDLL(str(folder / DRIVER), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / RUNTIME), ctypes.RTLD_GLOBAL)
    for name in ("kernels", "host_launches", "copies", "graph_launches", "captures"):
        getattr(driver, f"fake_{name}").restype = ctypes.c_long
    driver.fake_log.restype = ctypes.c_char_p
    return driver
