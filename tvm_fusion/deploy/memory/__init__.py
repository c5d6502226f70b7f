"""Memory of a module: planned before code is generated.

``in_place``, ``destinations``  results written where they are read next
``share_storage``               buffers whose lifetimes do not meet
``weights``                     constants as parameters of the module
"""
