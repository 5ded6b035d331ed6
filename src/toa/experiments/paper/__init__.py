"""The tables of the paper: published numbers, and the runs that reproduce them."""
