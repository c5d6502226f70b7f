"""Attention as all its kernels read it, matched by what stages compute and never by names.

``pattern``, ``match``          the operands q, k, v, the score, weights and epilogue of a program
``score_form``                  the score as bounds of visible keys, a scale and the rest
``mask_bounds``, ``constants``  masks by position; constants that were tensors
``weights``                     maps of the softmax before the second product
``sink``                        a score besides those of the keys
``query_group``                 GQA: rows that share keys and values
``kv_vectors``                  vector loads
``online_softmax``              a row's running maximum and sum, and how partial results merge
``propose``                     operators from the first product to the second
"""
