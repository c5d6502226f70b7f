"""Design spaces of GEMM and attention measured on a GPU: the default beside other configurations."""
