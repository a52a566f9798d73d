"""A recipe and a plan joined: the compiled steps, their bytes, and a training session in a process of its own."""
