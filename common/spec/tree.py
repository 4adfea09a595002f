"""The tree of a run's aggregators: which sites and regions send to which. Pure functions of the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOP = "aggregator"  # the name of the one above all


@dataclass(frozen=True)
class Node:
    """An aggregator in the tree, and who sends to it.

    Args:
        name: of its region; `TOP` of the one above all.
        above: name of the aggregator that it sends to; None of the one above all.
        level: how many aggregators stand above it.
        places: of each child's sites in the plan, by the child's name, in the order of their first sites.
        regions: which of the children are aggregators themselves.
    """

    name: str
    above: str | None
    level: int
    places: Mapping[str, tuple[int, ...]]
    regions: frozenset[str]

    @property
    def children(self) -> tuple[str, ...]:
        """Names of those that send to it, in order."""
        return tuple(self.places)

    @property
    def sites(self) -> tuple[int, ...]:
        """Places in the plan of all sites below it, in order."""
        return tuple(sorted(place for places in self.places.values() for place in places))


def nodes_of(sites: Sequence[str], regions: Mapping[str, Sequence[str]]) -> dict[str, Node]:
    """Return all aggregators of a run by name, those above first.

    Args:
        sites: of the run, in the plan's order.
        regions: the members of each, as `problem_of` has found them right.
    """
    holder = {member: name for name, members in regions.items() for member in members}
    below: dict[str, list[int]] = {name: [] for name in (*sites, *regions)}
    for place, site in enumerate(sites):
        name: str | None = site
        while name is not None:
            below[name].append(place)
            name = holder.get(name)
    members = {TOP: [name for name in below if name not in holder], **regions}
    nodes: dict[str, Node] = {}
    waiting: list[tuple[str, str | None, int]] = [(TOP, None, 0)]
    while waiting:
        own, above, level = waiting.pop(0)
        places = {child: tuple(below[child]) for child in sorted(members[own], key=lambda child: below[child])}
        nodes[own] = Node(own, above, level, places, frozenset(regions) & set(places))
        waiting += [(child, own, level + 1) for child in places if child in regions]
    return nodes


def names_in(nodes: Mapping[str, Node], region: str) -> list[str]:
    """Return the names of a region and of all sites and regions in it, those above first."""
    names = [region]
    for name in names:  # which grows meanwhile
        names += nodes[name].children if name in nodes else ()
    return names


def problem_of(sites: Sequence[str], regions: Mapping[str, Sequence[str]], most: int) -> str | None:
    """Return what makes regions no tree over the sites, beginning with the region's name; None if nothing."""
    holder: dict[str, str] = {}
    for name, members in regions.items():
        if name in sites:
            return f"{name}: is a site's name too: names must differ"
        if not members:
            return f"{name}: has no members, expected sites or other regions"
        for member in members:
            if member not in sites and member not in regions:
                return f"{name}: {member} is neither a site nor a region"
            if member in holder:
                return f"{name}: {member} is already a member of {holder[member]}"
            holder[member] = name
    for name in regions:
        above, seen = name, [name]
        while (above := holder.get(above, "")) not in seen and above:
            seen.append(above)
        if above == name:
            return f"{name}: is a member of itself, by way of {' and '.join(seen)}"
    if len(sites) + len(regions) > most:
        return f"are {len(regions)}, with the {len(sites)} sites more than {most}"
    return None
