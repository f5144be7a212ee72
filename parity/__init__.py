"""The hinge: what a twin is, its cases, its tolerances, and where it is run."""
