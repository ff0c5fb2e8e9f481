"""Minimisers: what the lowest point of a model is."""
