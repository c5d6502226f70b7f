"""Kernels in CUDA C, compiled for the host and run thread after thread: no GPU, no emulator.

What C leaves undefined ends the process: signed arithmetic that overflows, quotients by 0, shifts
beyond the width, casts of floats that do not fit. So do accesses outside of tensors, which lie
between pages that nobody may touch.
"""

import ctypes
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
UNDEFINED = "signed-integer-overflow,shift,integer-divide-by-zero,float-cast-overflow"
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) {')
_DIMENSIONS = 6  # of CUlaunchConfig: the grid's, then the block's
_Run = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)

_LAUNCH = """
extern "C" void launch_{name}(const unsigned *dims, void **p) {{
  gridDim = {{dims[0], dims[1], dims[2]}}, blockDim = {{dims[3], dims[4], dims[5]}};
  for (blockIdx.z = 0; blockIdx.z < dims[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < dims[1]; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < dims[0]; ++blockIdx.x)
        for (threadIdx.z = 0; threadIdx.z < dims[5]; ++threadIdx.z)
          for (threadIdx.y = 0; threadIdx.y < dims[4]; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < dims[3]; ++threadIdx.x)
              {name}({arguments});
}}
"""


def build(code: str, compiler: str, library: Path) -> None:
    """Compile CUDA C into a library of the host, with a ``launch_NAME`` for each kernel."""
    launches = []
    for name, parameters in _KERNEL.findall(code):
        types = [p.rsplit(None, 1)[0] for p in parameters.split(",")] if parameters else []
        arguments = ", ".join(f"*({t} *)p[{n}]" for n, t in enumerate(types))
        launches.append(_LAUNCH.format(name=name, arguments=arguments))
    source = library.with_suffix(".cpp")
    source.write_text(code + "".join(launches))
    command = [compiler, "-shared", "-fPIC", "-O1", "-std=c++17", "-w", f"-I{HERE / 'include'}"]
    checks = [f"-fsanitize={UNDEFINED}", "-fsanitize-undefined-trap-on-error"]
    subprocess.run([*command, *checks, str(source), "-o", str(library)], check=True)


class Launcher:
    """Runs kernels in place of the driver's stand-in, which calls it with their library's path."""

    def __init__(self, driver: ctypes.CDLL):
        self.launched: list[str] = []
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._run = _Run(self._launch)
        driver.fake_run_kernels(self._run)
        driver.fake_guard_memory(1)

    def _launch(self, line: bytes, config: int, parameters: int) -> None:
        name, path = line.decode().split()
        library = self._libraries.setdefault(path, ctypes.CDLL(path))
        dims = (ctypes.c_uint * _DIMENSIONS).from_address(config)
        self.launched.append(name)
        library[f"launch_{name}"](dims, ctypes.c_void_p(parameters))
