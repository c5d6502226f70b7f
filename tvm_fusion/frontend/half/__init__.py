"""Half precision: what is computed in float16 or bfloat16, and what stays in float32.

``precision`` is the pass, ``casts`` what it casts, ``operator_precision`` which operators it takes;
``intermediates`` keeps what one operator computes on the way in float32.
"""
