"""What converters of all formats make of Relax operators.

``formulas`` of activations, ``spatial`` layers by number of axes, ``recurrence`` by one kernel of
``task_kernels``; ``packed_weights`` of few bits, and ``rounded_rows`` for activations.
"""
