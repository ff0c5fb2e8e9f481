"""Claims are declared once, measured by one chapter and judged by a rule."""
