"""The search for the fastest plan that fits: chips, compiled bytes, estimate. It trains nothing and knows no model."""
