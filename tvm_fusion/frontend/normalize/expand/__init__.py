"""Operators as simpler ones.

* ``batch_norm``, ``median``, ``nonzero``: into operators that every template reads.
* ``power``, ``integer_power``: small constant exponents as products.
"""
