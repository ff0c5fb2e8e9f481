"""Runs and sweeps that survive a kill, and the devices they use."""
