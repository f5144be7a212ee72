"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import settings

# Machines differ in speed, and JAX compiles at first use: an example that is slow is no failure.
settings.register_profile("diptych", deadline=None)
settings.load_profile("diptych")
