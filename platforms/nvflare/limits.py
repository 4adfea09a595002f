"""How large a message NVFlare carries: it drops a larger one, and both ends wait for it."""

from __future__ import annotations

from nvflare.fuel.f3.comm_config import CommConfigurator

from rankdad.common.protocol.calls import HEAD_BYTES

CHUNK = 1 << 20  # bytes in which larger messages travel, if nothing else is configured


def dropped(size: int) -> str:
    """Return why this node's NVFlare drops a message of so many bytes; "" for one that it carries."""
    limits = CommConfigurator()
    most = limits.get_max_message_size()
    if min(size, limits.get_streaming_chunk_size(CHUNK)) + HEAD_BYTES <= most:
        return ""
    return f"a message has {size:,} bytes, but max_message_size in NVFlare's comm_config.json lets {most:,} through"
