"""Direct convolutions: register tiles of pixels by vectors of output channels.

===========  ====================================================================================
problem      roles of axes, image and padding, groups, words of narrow types
dense        direct convolution on CPUs
tiles        implicit GEMM on tile registers (AMX)
winograd     products of transformed tiles on CPUs, where --allow permits
depthwise    a filter for each channel, on CPUs and GPUs
===========  ====================================================================================

``template`` claims on CPUs. Dense convolutions on GPUs are products: ``contraction/copies``.
"""
