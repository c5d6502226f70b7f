"""Convert ai.onnx.ml: forests, linear models, support vector machines, encoders of numbers.

What scikit-learn, XGBoost and LightGBM are exported to. Where ONNX leaves semantics open, they are
those of ONNX Runtime. Strings are refused by name.
"""

from . import features, linear, trees  # noqa: F401  # for their registrations
