"""The trainer: the training loop, steps, checkpoints, several processes. The plan is an input."""
