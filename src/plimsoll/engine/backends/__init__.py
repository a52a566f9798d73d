"""Compilers for this machine's CPU, for this machine's GPU, and for an absent chip."""
