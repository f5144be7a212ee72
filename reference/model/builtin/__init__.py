"""The two small Qwen3 checkpoints that come with Diptych, and the scripts that trained them (README.md)."""
