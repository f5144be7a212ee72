"""The CuTeDSL twins of `reference/kernels`, under the same names."""
