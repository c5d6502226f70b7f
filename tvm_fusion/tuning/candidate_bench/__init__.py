"""What measures a folder of candidates where the device is: it travels in the folder.

Needs numpy, tvm_ffi and TVM's runtime; neither the compiler nor the rest of this package.
"""
