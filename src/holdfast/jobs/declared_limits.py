"""Whose limits a topic has: those of the application that declared them, whatever others that use the topic declare."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..core.errors import ConfigurationError
from .model import Topic, TopicLimits
from .stores.base import SqlJobStore

_log = logging.getLogger("holdfast.jobs")


def declare_limits(store: SqlJobStore, limits: Mapping[str, TopicLimits]) -> None:
    """Write down what an application declares for each topic, also that it has no limits any more.

    Raises:
        ConfigurationError: another application, which is at work, declares other limits for a topic.
    """
    topics = {topic.name: topic for topic in store.topics()}
    for name, wanted in limits.items():
        found = topics.get(name)
        if found is None or not found.limits.is_limited:
            if wanted.is_limited:
                store.set_limits(name, wanted)
        elif _may_change(store, found, wanted):
            store.set_limits(name, wanted)


def _may_change(store: SqlJobStore, found: Topic, wanted: TopicLimits) -> bool:
    """Return whether the limits of a topic are to become others, or those of this application."""
    owner = found.limited_by
    if owner == store.application:
        return found.limits != wanted
    if owner is None and wanted.is_limited:
        return True
    if not wanted.is_limited:
        _log.info("Topic '%s' has limits of %s, which hold for this one too.", found.name, _shown(owner))
        return False
    return found.limits != wanted and _is_left(store, found, owner)


def _is_left(store: SqlJobStore, found: Topic, owner: str | None) -> bool:
    """Return whether the limits of an application that is not at work may be replaced."""
    if owner in store.live_applications():
        raise ConfigurationError(
            f"Topic '{found.name}' has limits of {_shown(owner)}, which is at work, and this application declares "
            "others. Declare them in one of both, or give each a topic of its own."
        )
    _log.warning(
        "Topic '%s' had limits of %s, which is not at work; it has those of this application now.",
        found.name,
        _shown(owner),
    )
    return True


def _shown(owner: str | None) -> str:
    return "an application of an earlier release" if owner is None else f"the application '{owner}'"
