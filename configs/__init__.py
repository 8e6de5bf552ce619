"""Hydra configuration: one file per choice, defaults live beside the code."""
