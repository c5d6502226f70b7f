"""AMD kernels run without an AMD device, instruction by instruction.

``python -m benchmarks.amd_emulator`` compiles small graphs of every kind of kernel for gfx90a,
gfx942 and gfx1100, runs the artifacts through :func:`tvm_fusion.load` in the interpreter of the
tests (``tests/emulator/amd``) and compares with float64.
"""
