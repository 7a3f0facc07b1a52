"""The stages of a training step, and what happens at the end of an epoch."""
