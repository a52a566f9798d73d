"""Child processes, without JAX: environments, requests, supervision, signals, toolchains."""
