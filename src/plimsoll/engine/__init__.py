"""Recipe and plan put together: compiled steps, measurements of their memory and speed, and training sessions."""
