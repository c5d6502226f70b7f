"""Runs artifacts for AArch64 here: the C++ runner as `bundle` makes it, QEMU's user mode."""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy's bfloat16
import numpy as np

from tvm_fusion.deploy.build.bundle import PACKAGES, RUNNER, build_runner, cross_settings
from tvm_fusion.deploy.toolchain.host import find_compiler

TRIPLE = "aarch64-linux-gnu"
ROOT = Path("/usr", TRIPLE)  # of the cross compiler's C library
QEMU = "qemu-aarch64"
FEATURES = "fp asimd asimdhp asimdrdm asimddp atomics asimdfhm bf16 i8mm sve sve2"


class Emulator:
    """The runner in C++ for AArch64.

    Parameters
    ----------
    folder
        For the runner, and what it needs.

    Raises
    ------
    LookupError
        Names what is missing on this machine.
    """

    def __init__(self, folder: Path) -> None:
        if find_compiler(TRIPLE) is None or shutil.which(QEMU) is None or not ROOT.is_dir():
            raise LookupError(f"needs the packages qemu-user and g++-{TRIPLE}")
        wheels = folder / "wheels"
        _download(wheels)
        build_runner(folder / "bundle", cross_settings("aarch64", wheels, folder / "unpacked"))
        self._runner = folder / "bundle" / RUNNER
        # QEMU opens a file of this folder where there is one: the C library, and the CPU's features
        # that the runner reads, which are otherwise those of the machine below.
        self._root = folder / "root"
        (self._root / "proc").mkdir(parents=True)
        (self._root / "lib").symlink_to(ROOT / "lib")
        (self._root / "proc" / "cpuinfo").write_text(f"Features\t: {FEATURES}\n")

    def run(self, artifact, folder: Path, inputs: dict) -> list[np.ndarray]:
        """Export an artifact into a new folder, and run it; its outputs in order."""
        path = artifact.export(folder / "artifact")
        given = []
        for name, array in inputs.items():
            np.save(folder / f"in_{name}.npy", array)
            given += ["--input", f"{name}={folder}/in_{name}.npy"]
        command = [QEMU, "-cpu", "max", "-L", self._root, self._runner, path, *given]
        command += ["--repeat", "1", "--warmup", "0", "--output", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = artifact.manifest["functions"]["main"]["outputs"]
        return [np.load(folder / f"{o['name']}.npy").view(o["dtype"]) for o in found]


def _download(folder: Path) -> None:
    """Bring the wheels of the installed versions."""
    for package in PACKAGES:
        version = importlib.metadata.version(package)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder]
        command += ["--platform", "manylinux_2_28_aarch64", "--only-binary", ":all:"]
        done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True)
        if done.returncode:
            raise LookupError(f"needs the wheel of {package} {version} for {TRIPLE}")
