"""Kernels in Triton, for CUDA. Each has a plain version of the same signature, which is its definition.

They are loaded by path (`millpond.devices.kernels`), so that nothing here is imported where Triton is not installed. A program
computes a block of numbers; numbers that lie beside each other in memory are computed beside each other.
"""
