"""Launches of a GPU module, captured once as a CUDA graph, or as a HIP graph on AMD GPUs.

``capture``, ``copies``                    what is captured, and what goes around it
``static_inputs``, ``weights_tuple``       arguments that a graph reads in place
``dependent_launch``, ``weight_prefetch``  a kernel starts, and reads weights, before the one ahead
                                           ends
"""
