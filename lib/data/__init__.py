"""Data: the sentence task of the feature-collapse paper."""
