"""Direct convolution on a CPU.

    tasks in parallel: (image, band of rows, chunk of tiles of channels)        (``kernel``)
      copy padded lines (``image_copy``);  for tile of channels, tile of pixels:
        acc[pixels][vectors] += broadcast image * weight[vectors]      (``tile``, ``weight``)
        results in vectors (``epilogue``), or by rows of pixels (``row_stores``)

``config`` chooses tiles by a model; ``prefetch`` says what to fetch early, ``prefetch_cpu`` does.
"""
