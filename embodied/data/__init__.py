"""Recorded experience: store, sampling, formats."""
