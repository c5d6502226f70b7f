"""Convolution on a CPU's tile registers (AMX): an implicit GEMM over rows of pixels.

    tasks in parallel, as of a dense convolution                             (``dense/kernel``)
      shape the tiles;  copy padded lines, all channels of a pixel next to each other
      for tile of channels, tile of pixels:                                      (``kernel``)
        C[pixels][16 channels] = 0
        for row of the window, step of K:  C += A[pixels, k] * B[k, channels]
        store C;  results                                                    (``dense/epilogue``)

A's rows are pixels of one row of the image, at the distance of the stride. K is the columns of the
window times the channels, which are contiguous in a line; or the channels, where the window is
dilated or channels are in groups. ``problem`` says which, ``weight`` packs B in the order of tiles,
``config`` chooses the sizes.
"""
