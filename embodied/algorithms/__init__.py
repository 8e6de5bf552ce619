"""Algorithms: one file each, losses return (loss, diagnostics)."""
