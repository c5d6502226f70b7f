"""Lowering to TVM's virtual machine, building, the artifact on disk, and loading it.

``memory``      which tensors share storage, are written in place or lie next to each other
``build``       lowering, code generation, the artifact, its bundle with a C++ runner
``toolchain``   compilers of hosts, NVIDIA and AMD
``cuda_graph``  launches captured once, dependent launches, prefetched weights
``runtime``     what runs without the compiler: load, arguments, results, the team of threads
``cache``       artifacts compiled before
``count``       launches, bytes and loop nests of a module
``cpp``         the C++ runner's sources
``rocm``        the runtime of AMD GPUs in C++, which is linked into artifacts for them
"""
