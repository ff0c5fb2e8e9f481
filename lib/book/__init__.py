"""The pipeline of the book: chapters in Markdown become executed notebooks, and these become one site.

`page` reads the table of contents and the pages, `inputs` says which chapters are stale, `execute` runs them, `ledger`
judges what they measured, `site` makes one site of it, and `records` keeps what larger profiles measured. A running
chapter calls `kernel`. The command line is `python -m lib.book --help`.
Everything that is written goes below `_build` (or the folder that the environment variable BOOK_BUILD names).
"""
