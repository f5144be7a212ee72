"""Where the optimized panel is run to be judged: compiled alone, on the GPU at hand, later on a simulated one."""
