"""Optax transformations and their settings, with state and weights in fewer bits where asked for."""
