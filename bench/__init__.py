"""What the book claims to do fast, measured side by side in one run: `make bench`."""
