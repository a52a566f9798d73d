"""Optimizers: settings and optax transformations, with state and weights optionally in fewer bits."""
