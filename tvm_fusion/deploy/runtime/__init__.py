"""What runs where only TVM's runtime is: no compiler is imported here.

``load``, ``executable``, ``function``, ``direct``
    an artifact, its functions, a call; threads that all artifacts of a process share
``session``
    functions over caches that stay where they are
``arguments``, ``tensors``, ``torch_tensors``, ``staged``, ``results``
    arrays in and out, by DLPack or copies
``artifact``
    what an artifact says of itself, and its files
``workers``, ``worker``
    models on several workers; the process of one
``profile``
    the time of a call, kernel by kernel
"""
