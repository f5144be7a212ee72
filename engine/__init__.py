"""Serving, independent of the panel that computes: the loop, checkpoints, text, the HTTP API and the command line."""
