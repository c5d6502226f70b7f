"""Laws of operators that move elements.

``slices``   parts of tensors, and functions of parts
``concats``  concatenations
``moves``    two transposes, reshapes or flips in a row
"""
