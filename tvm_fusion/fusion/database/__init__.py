"""Measured alternatives and configurations, as JSON lines.

* ``records``: the file; ``schema``: what a line may hold; ``key``: by which it is found.
* ``comparisons``: alternatives of one run; ``tuning_records``, ``tuned_configs``: configurations.
"""
