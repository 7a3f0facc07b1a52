"""The stages of a training step and of the end of an epoch."""
