"""The method in a training loop of one's own: the ranks of a torch.distributed process group in place of sites.

There is no aggregator, spec or run. Ranks of one process group trust each other.
"""
