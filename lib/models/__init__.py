"""Models of the four papers, each a function or class whose body is recognisably the paper's formula."""
