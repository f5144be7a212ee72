"""The executor that stands where the GPU stands: compiled host code runs as it is, and what it launches is simulated.

    host function of optimized/kernels -> device.py -> program.py: the compiled object, linked in this process
        -> entry_points.py: what it calls of CUDA's runtime -> refusals.py -> the simulated GPU

Grid, block, cluster, shared memory, attributes and the layout of parameters are those that a GPU would be given.
"""
