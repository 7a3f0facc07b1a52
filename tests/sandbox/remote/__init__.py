"""Backends on other machines. A package, because its fixtures end with its last test."""
