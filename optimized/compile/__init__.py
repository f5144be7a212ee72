"""From a kernel's constants to machine code that is kept: specialization, keys, caches, launch policy."""
