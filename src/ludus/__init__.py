"""Ludus trains tool-using agents on tasks that can be verified, in words and in weights.

Importing it does nothing: no files, no environment variables, no clients.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # `ludus.compat` comes with a package of its own

__version__ = "0.2.0"
