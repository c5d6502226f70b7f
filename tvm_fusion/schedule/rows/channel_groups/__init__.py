"""Norms of groups of channels, channels last: blocks of pixels with all their channels.

    first launch    statistics of a part of an image, of all groups, about a shift     (statistics)
    second launch   join the parts, normalize in vectors            (normalize)

``channel_groups`` reads a program so, ``pixel_loop`` is a thread's loop, ``space`` has the
numbers.
"""
