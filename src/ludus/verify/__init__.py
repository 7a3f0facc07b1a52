"""Judges: small functions that compare what an agent produced with what is known, and return a `Score`.

A judge is pure. It says why in `feedback`, in words that an agent's author, or a reflector, can act on.
"""
