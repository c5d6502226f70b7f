"""AMD kernels run without an AMD device, instruction by instruction, in the tinygrad emulator.

``TINYGRAD=/path/to/tinygrad python -m benchmarks.amd_emulator`` compiles small graphs of every kind
of kernel for gfx942 and gfx1100, runs the artifacts through :func:`tvm_fusion.load` and compares
with float64. The checkout of github.com/tinygrad/tinygrad (MIT; its wheel lacks the emulator) stays
outside; what its emulator needs to run compilers' output is mended in memory.
"""
