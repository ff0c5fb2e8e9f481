"""Data, models, theory and measurements behind the chapters; it never imports a chapter."""

import os

if os.environ.get("COLLAPSE_NOTES"):  # in a kernel of a build, or a process that it has started
    from lib.book.kernel import notes

    notes.watch()
