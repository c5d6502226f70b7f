"""Mechanisms that GPU kernels share, each once, with the warp size as a parameter.

``memory``, ``registers``, ``threads``, ``matrix``: a folder each; instructions are device
functions. ``launch``, ``dlight``: limits of a launch; DLight's rules for the rest.
"""
