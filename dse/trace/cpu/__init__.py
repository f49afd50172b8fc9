"""The CPU as the device: computing operators, gloo's collectives, and waits for them."""
