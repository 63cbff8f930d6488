"""Envoy's admin interface: what is asked of it, and what its answers mean.

It is only read; what changes Envoy is the files that it watches. The readings are pure functions of
the answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from canary.gateways.envoy_config import (
    ADMIN_SOCKET,
    FAILED_PREFIX,
    first_of,
)
from canary.gateways.topology import ARMS, Topology
from domain.errors import Temporary
from domain.fleet import Role, SlotTraffic, Split

# What the split is read from: the routes in force, the endpoints, and the failed attempts.
QUESTIONS = (
    "/config_dump?resource=dynamic_route_configs",
    "/clusters?format=json",
    f"/stats?format=json&type=Counters&filter=^{FAILED_PREFIX}",
)
_ANSWER_S = 3.0
_LIVE = "LIVE"
# Envoy's words for an endpoint that gets no new request whatever its checks say.
_HELD_BACK = {"DRAINING", "UNHEALTHY", "TIMEOUT"}
_DOWN = ("failed_active_health_check", "failed_outlier_check", "pending_active_hc")


class Admin:
    """Asks one question at a time; every one has a deadline of three seconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def live(self) -> bool:
        """Whether Envoy has taken up its work; Temporary where none answers."""
        return (await self.ask("/ready")).strip() == _LIVE

    async def split(self, topology: Topology) -> Split:
        """The split in force; Temporary where Envoy does not tell it."""
        routes, clusters, counters = await self._told(*QUESTIONS)
        try:
            weight = weight_in(json.loads(routes))
            endpoints = endpoints_in(json.loads(clusters))
            failures = failures_in(json.loads(counters))
        except (ValueError, KeyError, TypeError) as error:
            raise Temporary(f"The gateway's admin interface is not Envoy's: {error!r}.") from error
        return split_of(topology, weight, endpoints, failures)

    async def ask(self, path: str) -> str:
        """Envoy's answer at ``path``; Temporary where it gives none."""
        [answer] = await self._told(path)
        return answer

    async def _told(self, *paths: str) -> list[str]:
        """The answers at these paths, one after the other over one connection."""
        # A Unix socket's path holds 107 bytes at most. Named through a handle on its directory it
        # is short, however deep that directory lies.
        try:
            handle = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise self._silent("is missing") from error
        try:
            # Reading the certificates that a local socket never shows takes longer than the answer.
            transport = httpx.AsyncHTTPTransport(
                uds=f"/proc/self/fd/{handle}/{ADMIN_SOCKET}", verify=False
            )
            async with httpx.AsyncClient(
                transport=transport, base_url="http://admin", timeout=_ANSWER_S, trust_env=False
            ) as client:
                return [(await client.get(path)).text for path in paths]
        except httpx.TimeoutException as error:
            raise self._silent("does not answer in time") from error
        except httpx.TransportError as error:
            raise self._silent("is closed") from error
        finally:
            os.close(handle)

    def _silent(self, why: str) -> Temporary:
        return Temporary(
            f"The gateway is not running: its admin socket in {self._directory} {why}."
        )


class EndpointReading(NamedTuple):
    """One endpoint as Envoy runs it. ``up`` is unknown, thus false, before its first check."""

    admitted: bool
    up: bool
    in_flight: int
    requests: int


def weight_in(dump: Mapping[str, Any]) -> int:
    """The candidate's weight in the routes, in percent; Temporary where they tell none."""
    weights = set()
    for config in dump.get("configs", []):
        for host in config["route_config"]["virtual_hosts"]:
            for route in host["routes"]:
                split = route.get("route", {}).get("weighted_clusters", {"clusters": []})
                weights.add(_candidate_percent(split["clusters"]))
    if len(weights) == 1 and (weight := weights.pop()) is not None:
        return weight
    raise Temporary("The gateway does not tell its weight: its routes split by none or by several.")


def _candidate_percent(clusters: list[dict[str, Any]]) -> int | None:
    shares = {cluster["name"]: int(cluster.get("weight", 0)) for cluster in clusters}
    total = sum(shares.values())
    if total == 0 or set(shares) != {first_of(role) for role in ARMS}:
        return None
    return round(100 * shares[first_of(Role.CANARY)] / total)


def endpoints_in(clusters: Mapping[str, Any]) -> dict[tuple[str, int], EndpointReading]:
    """Every endpoint by its cluster and port."""
    found = {}
    for cluster in clusters["cluster_statuses"]:
        for host in cluster.get("host_statuses", []):
            if address := host["address"].get("socket_address"):
                found[cluster["name"], int(address["port_value"])] = _reading(host)
    return found


def _reading(host: Mapping[str, Any]) -> EndpointReading:
    health = host["health_status"]
    stats = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
    return EndpointReading(
        admitted=health.get("eds_health_status", "HEALTHY") not in _HELD_BACK,
        up=not any(health.get(sign) for sign in _DOWN),
        in_flight=stats["rq_active"],
        requests=stats["rq_total"],
    )


def failures_in(stats: Mapping[str, Any]) -> dict[str, int]:
    """Failed attempts by slot; a slot without any may be missing."""
    return {
        stat["name"].removeprefix(FAILED_PREFIX): int(stat["value"])
        for stat in stats["stats"]
        if stat.get("name", "").startswith(FAILED_PREFIX)
    }


def split_of(
    topology: Topology,
    weight: int,
    endpoints: Mapping[tuple[str, int], EndpointReading],
    failures: Mapping[str, int],
) -> Split:
    """The split by slots; Temporary where one of them does not run."""
    slots = []
    for slot in topology.slots:
        endpoint = endpoints.get((slot.role.arm, slot.port))
        if endpoint is None:
            raise Temporary(f"The running gateway does not know slot {slot.name}.")
        slots.append(
            SlotTraffic(
                slot=slot.name,
                role=slot.role,
                admitted=endpoint.admitted,
                up=endpoint.up,
                in_flight=endpoint.in_flight,
                requests=endpoint.requests,
                errors=failures.get(slot.name, 0),
            )
        )
    return Split(weight=weight, slots=tuple(slots))
