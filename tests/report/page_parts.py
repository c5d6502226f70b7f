"""What a page consists of, read as a browser does; and models to make pages of."""

import base64
import gzip
import json
from html.parser import HTMLParser

import tiny_models
from onnx import TensorProto as T


class Page(HTMLParser):
    """Elements of a page with their attributes and the text in them."""

    def __init__(self, document):
        super().__init__()
        self.elements, self._open = [], None
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attrs):
        self._open = [tag, dict(attrs), ""]
        self.elements.append(self._open)

    def handle_data(self, data):
        if self._open is not None:
            self._open[2] += data

    def text(self, name):
        (found,) = (text for _, attrs, text in self.elements if attrs.get("id") == name)
        return found

    @property
    def content(self):
        return json.loads(self.text("content"))

    @property
    def kernels(self):
        return json.loads(gzip.decompress(base64.b64decode(self.text("kernels"))))


def two_products(names=("h", "a", "y")):
    """Two matrix products with a ReLU between them: one edge is fused, one is not."""
    h, a, y = names
    rng = tiny_models.np.random.default_rng()
    weights = {name: rng.standard_normal((32, 32)).astype("float32") for name in ("v", "w")}
    return tiny_models.onnx_model(
        [("MatMul", ["x", "v"], [h]), ("Relu", [h], [a]), ("MatMul", [a, "w"], [y])],
        [("x", T.FLOAT, [16, 32])],
        [(y, T.FLOAT, [16, 32])],
        weights,
    )
