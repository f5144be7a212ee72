"""Machines that CI does not own, simulated in NumPy. Imports nothing of the other packages."""
