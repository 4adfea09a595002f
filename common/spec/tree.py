"""The tree of a run's aggregators: sites and regions with their parents. Pure functions of the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOP = "aggregator"  # name of the root


@dataclass(frozen=True)
class Node:
    """An aggregator in the tree, with its children.

    Args:
        name: of its region; `TOP` for the root.
        above: name of its parent; None for the root.
        level: distance from the root.
        places: indices in the plan of each child's sites, by child, in the order of their first sites.
        regions: the children that are aggregators.
    """

    name: str
    above: str | None
    level: int
    places: Mapping[str, tuple[int, ...]]
    regions: frozenset[str]

    @property
    def children(self) -> tuple[str, ...]:
        """Names of the children, in order."""
        return tuple(self.places)

    @property
    def sites(self) -> tuple[int, ...]:
        """Indices in the plan of all sites below it, in order."""
        return tuple(sorted(place for places in self.places.values() for place in places))


def nodes_of(sites: Sequence[str], regions: Mapping[str, Sequence[str]]) -> dict[str, Node]:
    """Return all aggregators of a run by name, parents first.

    Args:
        sites: of the run, in the plan's order.
        regions: their members, checked by `problem_of`.
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
    """Return the names of a region and of all sites and regions in it, parents first."""
    names = [region]
    for name in names:  # which is extended in the loop
        names += nodes[name].children if name in nodes else ()
    return names


def problem_of(sites: Sequence[str], regions: Mapping[str, Sequence[str]], most: int) -> str | None:
    """Return why regions are not a tree over the sites, beginning with the region's name; None if they are."""
    holder: dict[str, str] = {}
    for name, members in regions.items():
        if name in sites:
            return f"{name}: is also a site's name: names must differ"
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
            return f"{name}: is a member of itself, through {' and '.join(seen)}"
    if len(sites) + len(regions) > most:
        return f"are {len(regions)}, which with the {len(sites)} sites is more than {most}"
    return None
