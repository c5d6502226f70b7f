import pytest

import tvm_fusion.transform  # noqa: F401  (the templates that the search asks for costs)


@pytest.fixture(autouse=True)
def _plain_llvm(plain_llvm):
    """What is tested here are graphs and their meaning."""
