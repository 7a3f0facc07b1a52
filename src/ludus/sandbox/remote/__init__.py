"""Slots in containers and on other hosts, served there by `slotd`."""
