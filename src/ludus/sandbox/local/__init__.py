"""Slots of this machine."""
