"""Qwen3 out of the twins of this panel."""
