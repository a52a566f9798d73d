def devices(chip):
    from jax.experimental import topologies

    c = dict(chip.compiler)
    c["chips_per_host_bounds"] = tuple(c["chips_per_host_bounds"])
    return topologies.get_topology_desc(platform="tpu", **c).devices
