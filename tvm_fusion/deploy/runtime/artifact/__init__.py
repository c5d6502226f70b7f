"""What an artifact says of itself: ``manifest``, of a ``schema``, and its files.

``signature`` and ``call_tree`` are the inputs and results of a function, ``weights_file`` is
mapped, and read when touched.
"""
