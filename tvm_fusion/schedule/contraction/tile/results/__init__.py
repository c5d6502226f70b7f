"""From sums in registers to results in memory.

``results``, ``vectors``        results in vectors, and the widest that all can be stored in
``shared_epilogue``             sums through shared memory to these vectors; rows that are
                                reduced over windows of pixels
``adjacent_columns``            results that read pairs of columns, which lie in one vector
``group_sums``, ``row_values``  what is added up of groups of columns, of rows
``concat_parts``                other parts of a concatenation, copied by idle threads
"""
