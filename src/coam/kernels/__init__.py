"""Fused GPU kernels: the only room that knows Triton and CUDA graphs. Nothing here is imported on a CPU."""
