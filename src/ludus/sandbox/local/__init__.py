"""Slots on this machine."""
