"""The algorithms as CUDA kernels, and an emulator that runs them on any CPU. Importing it needs no GPU."""
