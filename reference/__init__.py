"""The reference panel: the definition of the right answer, in NumPy and JAX, for a person to read."""
