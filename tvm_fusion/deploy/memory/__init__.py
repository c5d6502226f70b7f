"""Memory of a module: planned before code is generated.

``in_place``, ``destinations``  results written where they are read next
``slice_patterns``, ``slices``  slices of caches: as they are imported, as one kernel
``write_through``               slices that the kernel which computes them writes
``concat_parts``                parts of concatenations, stored where they are joined
``write_back``                  whole states, copied over inputs at the end
``limits``                      numbers that lookups and slices have
``computed_extents``            extents whose product must not wrap
``share_storage``               buffers whose lifetimes do not meet
``weights``                     constants as parameters of the module
"""
