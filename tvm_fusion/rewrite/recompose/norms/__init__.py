"""Norms of rows and of groups of channels.

``standardize``  rows that are standardized, scaled and shifted, however that is written
``layer_norm``, ``group_norm``  layer and RMS norm; group and instance norm
"""
