"""Matrix products, convolutions and their weights.

A product of m x k and k x n counts 2 m k n; weights are known at compile time and cost nothing.
"""

from tvm.relax import op

from .expression import expression, number, positive, weight

X = (96, 64)
COLUMN = (96, 1)
IMAGE = (1, 8, 24, 24)
FILTERS = (16, 8, 3, 3)
SCALES = (1, 16, 1, 1)


@expression(a=(128, 128), b=(128, 128), v=(128, 1))
def matrix_on_vector(a, b, v):
    """Two products with a vector are 64 times less than one of matrices."""
    return (op.matmul(op.matmul(a, b), v), op.matmul(a, op.matmul(b, v)))


@expression(a=(32, 24), b=(24, 96), c=(96, 16), d=(16, 120))
def chain_of_four(a, b, c, d):
    """By the standard recurrence (Godbole, 1973): (A (B C)) D costs 110,592 multiplications."""
    return (
        op.matmul(a, op.matmul(b, op.matmul(c, d))),
        op.matmul(op.matmul(a, op.matmul(b, c)), d),
    )


@expression(a=X, b=X, c=(96, 80), w=(64, 80))
def products_with_one_matrix_apart(a, b, c, w):
    """As before, with another summand between them."""
    return (op.matmul(a, w) + c + op.matmul(b, w), op.matmul(a + b, w) + c)


@expression(a=X, b=(64, 80), c=(64, 80))
def sum_and_difference(a, b, c):
    """What is added and taken away cancels; the doubling is of the smaller operand."""
    return (op.matmul(a, b + c) + op.matmul(a, b - c), op.matmul(a, b + b))


@expression(x=X, w=weight(64, 80), b=weight(80), k=weight(80))
def scale_behind_bias(x, w, b, k):
    """The scale goes into weights and bias."""
    return ((op.matmul(x, w) + b) * k, op.matmul(x, w * k) + b * k)


@expression(x=X, v=weight(64, 64), b=weight(64), w=weight(64, 96), c=weight(96))
def two_affine_layers(x, v, b, w, c):
    """Without anything between them two affine maps are one."""
    return (
        op.matmul(op.matmul(x, v) + b, w) + c,
        op.matmul(x, op.matmul(v, w)) + (op.matmul(b, w) + c),
    )


@expression(x=(96, 256), s=COLUMN, w=(256, 16))
def scaled_rows(x, s, w):
    """(diag(s) X) W = diag(s) (X W): 16 columns are scaled instead of 256."""
    return (op.matmul(x * s, w), op.matmul(x, w) * s)


@expression(x=(96, 256), g=weight(256), s=positive(*COLUMN), w=weight(256, 16))
def normalised_rows(x, g, s, w):
    """The division by a row's norm after the product, the gain into the weights."""
    return (op.matmul(x / op.sqrt(s) * g, w), op.matmul(x, op.expand_dims(g, 1) * w) / op.sqrt(s))


@expression(q=(128, 16), k=(16, 128), v=(128, 16))
def linear_attention(q, k, v):
    """Without softmax the small product comes first, and a number scales the smallest tensor."""
    return (
        op.matmul(op.matmul(q, k) * number(0.25), v),
        op.matmul(q, op.matmul(k, v) * number(0.25)),
    )


@expression(a=X, b=(64, 80))
def sum_of_product(a, b):
    """A column sum of a product is a product with a column sum: 96 times less."""
    return (
        op.sum(op.matmul(a, b), axis=[0], keepdims=True),
        op.matmul(op.sum(a, axis=[0], keepdims=True), b),
    )


@expression(x=X, w=weight(64, 80), b=weight(80))
def mean_of_affine_map(x, w, b):
    """The mean of an affine map is the map of the mean."""
    mean = op.mean(x, axis=[0], keepdims=True)
    return (op.mean(op.matmul(x, w) + b, axis=[0], keepdims=True), op.matmul(mean, w) + b)


@expression(a=(96, 64), b=(80, 96))
def transposed_product(a, b):
    """A product of transposed operands is the transposed product: nothing is moved."""
    before = op.permute_dims(op.matmul(op.permute_dims(a), op.permute_dims(b)))
    return (before, op.matmul(b, a))


@expression(x=X, u=(96, 1), v=(1, 96))
def product_with_outer_product(x, u, v):
    """An outer product is never formed."""
    return (op.matmul(op.matmul(u, v), x), op.matmul(u, op.matmul(v, x)))


@expression(x=IMAGE, w=weight(*FILTERS), m=weight(*SCALES), s=weight(*SCALES), b=weight(*SCALES))
def normalised_convolution(x, w, m, s, b):
    """Mean, scale and shift of channels go into filters and bias: one operator is left of three."""
    filters = w * op.reshape(s, (16, 1, 1, 1))
    return ((op.nn.conv2d(x, w) - m) * s + b, op.nn.conv2d(x, filters) + (b - m * s))


@expression(x=IMAGE, y=IMAGE, w=weight(*FILTERS))
def convolutions_with_one_filter(x, y, w):
    """A convolution is linear: one instead of two."""
    return (op.nn.conv2d(x, w) + op.nn.conv2d(y, w), op.nn.conv2d(x + y, w))


@expression(x=IMAGE, v=weight(*FILTERS), w=weight(*FILTERS), b=weight(*SCALES))
def convolutions_of_one_image(x, v, w, b):
    """It is linear in the filters, too, which are known; the bias stands in between."""
    before = op.nn.conv2d(x, v) + b + op.nn.conv2d(x, w)
    return (before, op.nn.conv2d(x, v + w) + b)


@expression(a=X, b=X, w=(64, 80))
def part_of_what_is_joined(a, b, w):
    """The second part of what is joined is b: nothing is joined."""
    joined = op.concat([a, b], axis=0)
    part = op.strided_slice(joined, axes=[0], begin=[96], end=[192])
    return op.matmul(part + a, w), op.matmul(b + a, w)
