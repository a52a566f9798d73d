"""Child processes: environment variables, requests, supervision, signals, toolchains. Does not import JAX."""
