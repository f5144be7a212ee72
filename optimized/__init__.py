"""The optimized panel: the CuTeDSL twins of `reference`, under the same file names."""
