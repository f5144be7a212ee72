"""The version of Diptych, said once."""

from __future__ import annotations

VERSION = "0.1.0"
