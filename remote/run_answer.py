"""An aggregator's answer to a site that asks for the run."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel

from rankdad.remote.aggregator import Aggregator


class RunAnswer(BaseModel):
    """The run's spec, and values that a site compares before it reads data."""

    version: str
    wire: int
    aggregator: str
    run: dict[str, Any]
    plan_sha256: str
    id: str
    resumes: bool
    round: int
    oldest: int

    @classmethod
    def of(cls, aggregator: Aggregator) -> Self:
        """Create the answer from the aggregator's present state."""
        plan, status = aggregator.plan, aggregator.status
        return cls(
            version=plan.version,
            wire=plan.protocol,
            aggregator=aggregator.node.name,
            run=aggregator.spec.document(),
            plan_sha256=plan.sha256(),
            id=aggregator.run_id,
            resumes=aggregator.persistence.keeps,
            round=status.round,
            oldest=status.oldest,
        )
