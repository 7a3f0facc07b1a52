"""A port in a slot: the agent's only way out of a slot without a network. The driver answers it."""
