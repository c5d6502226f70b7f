"""Contractions on GPUs: which kernel a group takes.

    few rows                                    ``skinny``
    half types, 8 bits, tfloat32                ``mma`` or ``wgmma``, by estimated time, of operands
                                                as they are or of copies
    otherwise                                   DLight's schedules, or untiled sums

``template``               claims a group, tells its work and its design space
``product``                what a group computes: one product, two of one A, with other parts
``forms``                  the table: each form of a product, its kernel and time, or a refusal
``tile_forms``             tiles of operands as they are, of groups, of copies
``space``                  the problem, its default and every configuration
``dynamic_m``              symbolic M: a skinny GEMM besides the tiled one, chosen by the host
``emit``                   the PrimFunc of a configuration
``grouped_gemm_template``  small products of different operands in one launch
"""
