"""Doors to the formats people have."""
