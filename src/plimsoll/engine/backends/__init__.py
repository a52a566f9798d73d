"""Compilers: of this machine's CPU, of the GPU that is here, and of a chip that is not."""
