"""Design spaces of GEMM and attention measured on a GPU: defaults beside other configurations."""
