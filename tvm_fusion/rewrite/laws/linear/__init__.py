"""Laws of products and convolutions.

``matmuls``, ``scaled_products``, ``special_products``
``convolution``
``joined``           products or convolutions with a common operand, as one
``reparameterized``  convolutions that are one: in parallel, added to their image, in a row
"""
