"""Ludus trains tool-using agents on tasks that can be verified, in words and in weights.

Importing it does nothing: no files, no environment variables, no clients.
"""

__version__ = "0.1.0"
