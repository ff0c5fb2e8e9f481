"""What the papers prove: constants of the predicted minimisers, the minimisers, and certificates of optimality."""
