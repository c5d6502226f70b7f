"""GEMV on CUDA cores: a slice of K is a thread's.

``config``, ``default``, ``model`` (its clocks), ``thread_tile`` (columns and vectors of a thread);
``mainloop``, ``tile`` (what a thread loads and adds up), ``norm_rows`` (an RMS norm in front).
"""
