"""Norms in front of products: ``norm(x) @ w = (x @ w - mean * column sums) * rstd + shift``.

``matches`` finds them, ``operators`` writes the product's form, ``statistics`` lets the product
before add up mean and variance where that pays.
"""
