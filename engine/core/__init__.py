"""The engine itself: scheduler, KV blocks, prefix cache, and the loop of steps that joins them to a runner."""
