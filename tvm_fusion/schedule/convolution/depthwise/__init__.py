"""Depthwise convolutions: vectors of channels, tiles of pixels of one row.

    acc[pixel] += image[pixel + window] * weight[window]      padding by bounds of loops, no copy

``cpu_config``, ``cpu_kernel``
    CPUs
``gpu_view``, ``gpu_config``, ``gpu_kernel``, ``gpu_template``
    GPUs, channels last
"""
