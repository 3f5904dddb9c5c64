"""What pytest must not look into by itself: a module that needs numba, which only one benchmark uses, if it is there."""

collect_ignore = ["numba_tree_sum.py"]
