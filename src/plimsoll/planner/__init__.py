"""Search for the fastest plan that fits a budget: chips, bytes, step times. It trains nothing and knows no model."""
