"""Tabletop tasks, one file each."""
