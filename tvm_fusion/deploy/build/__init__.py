"""From scheduled functions to an artifact.

``prepare``           modules for one architecture each, weights apart
``lower``             call_tir to the virtual machine's instructions: memory plan, shapes
``codegen``           kernels lowered and compiled on all cores; ``amd_registers`` reads back theirs
``build``             machine code for all architectures, kernels counted; the instruction sets
                      that an artifact needs
``launch_names``      the user's names of what each launch computes
``packed_functions``  who has a packed function where the compiler is not
``description``       what the manifest says of a compilation
``artifact``          a compiled model, written whole or not at all
``bundle``            a folder that runs it without Python, for another family of processors, too
``dump``              TVMScript as files
"""
