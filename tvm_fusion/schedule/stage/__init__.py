"""The passes that turn planned groups into kernels.

``emit``      each distinct group once, by the template that claimed it
``guard``     a rule that fails costs its kernel only
``install``   calls of groups become calls of PrimFuncs; constants packed at compile time
``launches``  launches of a PrimFunc, counted
"""
