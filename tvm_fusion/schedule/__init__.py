"""From planned groups to scheduled kernels: one rule after the other, each guarded."""
