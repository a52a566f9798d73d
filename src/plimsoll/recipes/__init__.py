"""What to learn: a folder per workload with its model, data, preparation, evaluation, tables and presets."""
