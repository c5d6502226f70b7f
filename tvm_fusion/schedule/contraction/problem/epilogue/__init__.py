"""What is computed of a product's results before they are stored.

``row_statistics``, ``row_values``  sums and extrema over whole rows, next to the results
``group_sums``, ``head_sum``        sums over groups of columns; over a head's columns
``pooled_rows``                     rows that are reduced over windows of pixels
``concat``, ``cut_axis``            a part of a concatenation; an axis in parts
``proposals``                       epilogues of few rows that take all operators behind the product
``fuse``                            epilogues into the TensorIR that TVM's own schedules take
"""
