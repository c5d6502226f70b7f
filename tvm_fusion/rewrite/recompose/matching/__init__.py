"""How expressions are compared, whichever operators they are written in.

``match``        an expression as a polynomial over one tensor and its functions
``polynomial``   polynomials over tensors, in a normal form
``coefficient``  numbers with an interval for rounding
``view``         the definition and the readers of every variable
``extents``      when two shapes are the same
"""
