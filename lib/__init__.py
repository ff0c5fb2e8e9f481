"""Data, models, theory and measurements behind the chapters; it never imports a chapter."""
