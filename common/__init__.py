"""What a site and the aggregator must agree on: specification, mathematics, protocol.

No sockets, clocks or processes.
"""

__version__ = "0.1.0"
