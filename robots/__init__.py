"""Plug-ins: robots of this project."""
