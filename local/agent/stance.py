"""A site's answer to whether it would take part in a run, without reading data or counting the run."""

from __future__ import annotations

import logging
from pathlib import Path

from rankdad.common.errors import PolicyError, RankdadError, one_line
from rankdad.common.needs import Need, needs, shown
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.policy_lists import MAX_NAMES
from rankdad.common.protocol.plan import Plan
from rankdad.common.protocol.service import MAX_NEEDED, MAX_REFUSALS, Question, Refusal, Stance
from rankdad.common.spec.asked import not_listed
from rankdad.local.config import SiteConfig
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.taking_part import offered_spec, permitted

LISTED = ("files", "columns")
_log = logging.getLogger(__name__)


def stance_on(config: SiteConfig, question: Question) -> Stance:
    """Return whether a site would take part in a run, according to its policy, configuration and installed packages.

    Policy lines that depend on numbers of samples are not checked. Error sentences stay at the site, because they may
    name what only its policy lists.

    Args:
        config: of the site.
        question: the run, and its owner.
    """
    found, needed = list[Refusal](), list[Need]()
    try:
        spec = offered_spec(config, {"version": question.version, "wire": question.wire, "run": question.spec})
        policy, own = Policy.read(config.policy), spec.at(config.name)
        limits = policy.runs_per_day, policy.runs
        log = DisclosureLog(Path(config.privacy), config.name, results=[Path(config.output)])
        if limits != (None, None) and log.exists():
            try:
                log.count(None, question.owner or config.aggregator, *limits)
            except PolicyError as error:
                found.append(Refusal(line=error.field, code=error.code))

        def planned(policy: Policy, plan: Plan) -> None:
            needed[:] = needs(policy, lambda one: check_run(one, own, plan))

        permitted(config, spec, planned=planned)
    except RankdadError as error:
        lines = [_refusal(one) for one in needed if one.refused]
        found += lines or [Refusal(field=error.public_field[:200], code=error.public_code)]
    except Exception as error:
        _log.warning("a draft cannot be checked: %s", one_line(error))
        found.append(Refusal(code="unexpected-error"))
    return Stance(refusals=tuple(found[:MAX_REFUSALS]), by_hand=config.approval == "manual")


def _refusal(one: Need) -> Refusal:
    value = one.needed
    if one.line in LISTED and isinstance(one.here, list) and isinstance(value, list | tuple):
        value = list(not_listed(one.here, {one.field: value}))
    return Refusal(line=one.line, field=one.field[:200], code=one.code, needed=shown(value, MAX_NAMES)[:MAX_NEEDED])
