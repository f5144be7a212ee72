"""Thin wrappers over PTX that CuTeDSL lacks, one file a family of instructions."""
