"""The compiler options under which tests compile in their own processes."""

from importlib.metadata import version

FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
PLAIN_CODE = "" if version("jaxlib") >= "0.11" else FLAGS
"""Takes two thirds off the CPU time in which XLA compiles small programs: without the newer emitters, and in one piece
of LLVM's instead of one a core. Buffers of their steps differ by less than 1 %, mostly by less
than 0.01 %. `make test-by-hand` compiles without them. jaxlib 0.11 does not have the first, and ends a process that
sets it."""
