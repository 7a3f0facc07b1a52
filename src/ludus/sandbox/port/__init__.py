"""A port in a slot: the one way out of a slot without a network, answered by the driver."""
