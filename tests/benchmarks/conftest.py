"""What pytest must not open by itself: a module that needs numba, which one benchmark imports where it is there."""

collect_ignore = ["numba_tree_sum.py"]
