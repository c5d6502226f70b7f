import tvm_fusion.transform  # noqa: F401  (the templates that the search asks for costs)
