"""Data: the sentence task of the feature-collapse paper, and the image sets of the other three."""
