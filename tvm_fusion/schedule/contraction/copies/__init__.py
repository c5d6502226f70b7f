"""Operands in another form, in front of a product or at compile time.

``operand_copies``       how a copy, its kernel and a packed weight belong to a product
``implicit_gemm``        convolutions channels last: rows of A are windows, which nothing copies
``weight_along_k``       a constant weight whose terms lie side by side, for AMD's instructions
``grouped_convolution``  the same with a group for each matrix of a batch
``partial_im2col``       few channels: a copy of the image with all taps of a row but the last
``aligned_rows``         rows copied to multiples of 16 bytes, so that TMA takes them
"""
