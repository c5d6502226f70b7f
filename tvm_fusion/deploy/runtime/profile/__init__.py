"""Where the time of a call goes, kernel by kernel; imports no compiler.

``profile``
    runs a function in turns without and with timers around its kernels
``calls``
    the calls of one run, from the virtual machine's instrument
``clocks``, ``ranges``
    when they began and ended: the CPU's clock, or CUDA events; NVTX ranges around them
``rates``
    the machine's bandwidth and peak, measured once and kept
``result``, ``trace``
    a profile as data; as a trace for Perfetto
"""
