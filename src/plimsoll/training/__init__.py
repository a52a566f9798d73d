"""The training loop: steps, checkpoints, several processes. It is handed a plan and chooses none."""
