"""The pipeline of the book: chapters in Markdown become executed notebooks, and these become one site.

`lib.book.chapters` finds the chapters and decides which are stale, `lib.book.run` executes them, `lib.book.compose`
makes pages of prose and results, `lib.book.site` publishes them. The command line is `python -m lib.book --help`.
Everything that is written goes below `_build` (or the folder that the environment variable BOOK_BUILD names).
"""
