"""Plug-ins: policies of this project."""
