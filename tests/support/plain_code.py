"""The compiler option under which tests compile in their own processes."""

from importlib.metadata import version

PLAIN_CODE = "" if version("jaxlib") >= "0.11" else "--xla_cpu_use_fusion_emitters=false"
"""Takes 40 % off the compile time of small programs. Buffers of their steps differ by less than 1 %, mostly by less
than 0.01 %. plimsoll's commands, and `make test-by-hand`, compile as users' do. jaxlib 0.11 does not have it, and ends
a process that sets it."""
