"""Recipes (training problems): a folder per workload with its model, data, preparation, evaluation and tables."""
