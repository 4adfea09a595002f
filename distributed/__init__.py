"""The method in a custom training loop, with the ranks of a torch.distributed process group as sites.

There is no aggregator, spec or run. The ranks of a process group trust each other.
"""
