"""Hopper: a producer with TMA, and groups of warps that multiply in turns.

``config``             a configuration: tiles, stages, consumers
``operand``            q, k and v as tensor maps
``consumers``          what the producer and each consumer do, and in which order
"""
