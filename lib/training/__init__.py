"""Trajectories: what gradient descent finds."""
