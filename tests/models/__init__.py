"""A package, so that this test_sentences.py and the one of the data are two modules."""
