import pytest


@pytest.fixture(autouse=True)
def _plain_llvm(plain_llvm):
    """What is tested here are graphs and their meaning."""
