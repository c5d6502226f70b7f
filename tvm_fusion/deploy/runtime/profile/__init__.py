"""Where the time of a call goes, kernel by kernel; imports no compiler.

``profile``
    joins the times of a function's kernels with what the artifact tells of them; the machine's
    bandwidth and peak, measured once and kept
``bench``
    runs the function in turns, whole and kernel by kernel
``calls``
    the calls of one run, from the virtual machine's instrument
``clocks``, ``ranges``
    when they began and ended: the CPU's clock, or CUDA events; NVTX ranges around them
``cupti``
    kernels of a CUDA graph, as NVIDIA's CUPTI records them where it is installed
``result``
    a profile as data
"""
