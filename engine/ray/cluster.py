"""A Ray cluster: found or started, its processors reserved as the recipe places the roles, before anything loads."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jurat.engine.ray.actor import environment
from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Engine

CONNECT_SECONDS = 10.0
RESERVE_SECONDS = 20.0
"""For processors that the cluster counts as free."""
_log = logging.getLogger("jurat")
Hear = Callable[[str, Mapping[str, Any]], None]
"""Takes an event for the run's record: (kind, facts)."""


def unheard(kind: str, facts: Mapping[str, Any]) -> None:
    """There is no record."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a pool has, and for how many processes."""

    cpus: int
    gpus: int
    processes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pool is reserved."""

    group: PlacementGroup
    bundle: int = 0

    def node(self) -> str:
        """Ray's id of the machine; '' while there is none."""
        found: str = placement_group_table(self.group)["bundles_to_node_id"].get(self.bundle) or ""
        return found if found in _alive() else ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Reserved processors of a running cluster."""

    engine: Engine
    shares: Mapping[str, Share]
    places: dict[str, Place]
    """Pool -> where it is now; a spare one leaves when it stands in for another."""
    note: Callable[[str], None]
    event: Hear

    def threads(self, role: str) -> int:
        """The recipe's number, else all processors of the pool."""
        return self.engine.threads or self._share(role).cpus

    def create(self, role: str, actor: type) -> Callable[[int], Any]:
        """What makes the n-th actor of a role in its pool, or in a spare one once the pool's machine is lost."""
        share = self._share(role)

        def make(attempt: int) -> Any:
            place = self._place(self.engine.pool_of(role))
            settings = {
                "num_cpus": _part(share.cpus, share.processes),
                "num_gpus": _part(share.gpus, share.processes),
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    place.group, placement_group_bundle_index=place.bundle
                ),
                "runtime_env": {"env_vars": dict(environment(role, self.threads(role), attempt))},
                "max_restarts": 0,
                "max_task_retries": 0,
            }
            return ray.remote(actor).options(**settings).remote()

        return make

    def stands(self, role: str) -> bool:
        """Whether the role's pool has a machine; True too where no spare pool could take its place."""
        pool = self.engine.pool_of(role)
        return not self._spare(pool) or bool(self.places[pool].node())

    def _place(self, pool: str) -> Place:
        spare = self._spare(pool)
        if spare and not self.places[pool].node():
            self.places[pool] = self.places.pop(spare)
            self.note(f"pool {pool} lost its machine; spare pool {spare} stands in for it")
            self.event("pool_lost", {"pool": pool, "spare": spare})
        return self.places[pool]

    def _spare(self, pool: str) -> str:
        """The first free spare pool that is large enough, '' if there is none."""
        free = [name for name in self.places if self.engine.pools[name].spare]
        return next((name for name in free if _covers(self.shares[name], self.shares[pool])), "")

    def seat(self, role: str, ranks: int) -> None:
        """Raise ConfigError where the pool of a role has no processor for each rank: ranks share a machine."""
        share, pool = self._share(role), self.engine.pool_of(role)
        kind, there = "CPU", float(share.cpus)
        if ranks > 1 and there >= ranks and self.engine.device.startswith("cuda"):
            kind, there = "GPU", _part(share.gpus, share.processes)
        if there < ranks:
            others = f" for each of its {share.processes} processes" if kind == "GPU" and share.processes > 1 else ""
            raise ConfigError(
                f"the {role}'s {ranks} ranks need a {kind} each, pool {pool} has {there:g}{others}",
                where=f"engine.pools.{pool}.{kind.lower()}s",
                fix=f"raise it, lower engine.ranks, or give the {role} a larger pool of its own (engine.placement.{role})",
            )

    def _share(self, role: str) -> Share:
        return self.shares[self.engine.pool_of(role)]


def _covers(spare: Share, share: Share) -> bool:
    return spare.cpus >= share.cpus and spare.gpus >= share.gpus


def _holds(machine: Mapping[str, float], share: Share) -> bool:
    return machine.get("CPU", 0) >= share.cpus and machine.get("GPU", 0) >= share.gpus


def _part(amount: int, processes: int) -> float:
    """Ray takes whole processors or a fraction of one."""
    share = amount / processes
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1e4) / 1e4


@contextmanager
def connect(
    engine: Engine, *, roles: Sequence[str], note: Callable[[str], None] = _log.warning, event: Hear = unheard
) -> Iterator[Cluster]:
    """The cluster of a recipe with processors reserved for ``roles``; what was started here is shut down again.

    Raises ConfigError where Ray is not installed, no cluster answers, or the pools do not fit the machines.
    """
    ours = not ray.is_initialized()
    if ours:
        _begin(engine.ray)
    try:
        wanted = _shares(engine, roles, _machines())
        groups: list[PlacementGroup] = []
        try:
            yield Cluster(engine, wanted, _reserve_all(engine, wanted, groups), note, event)
        finally:
            for group in groups:
                remove_placement_group(group)
    finally:
        if ours:
            ray.shutdown()


def _begin(address: str) -> None:
    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        ray.init(address="local", include_dashboard=False, **settings)
        return
    if address != "auto":  # Ray itself tries for minutes
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise ConfigError(
                f"nothing answers at the address of the Ray cluster: {error}", where=f"engine.ray: {address}",
                fix="start a cluster (ray start --head) and give its host:port, or set engine.ray: local to have one for the run",
            ) from None  # fmt: skip
    try:
        ray.init(address=address, **settings)
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_let_in(address, error) from None


def _not_let_in(address: str, error: Exception) -> ConfigError:
    """Of an address where something listens (``auto``: perhaps not), but no cluster that takes this driver. Ray's error is the
    same for a wrong token, for none, and for what is no Ray; its native code prints the reason to stderr."""
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else type(error).__name__
    if address == "auto" and isinstance(error, ConnectionError):
        return ConfigError(
            f"no Ray cluster runs on this machine: {said}", where="engine.ray: auto",
            fix="start one (ray start --head), or set engine.ray: local to have one for the run",
        )  # fmt: skip
    mode = os.environ.get("RAY_AUTH_MODE") or "not set"
    return ConfigError(
        f"the Ray cluster answers, but lets this process not in (RAY_AUTH_MODE is {mode} here): {said}",
        where=f"engine.ray: {address}",
        fix="a cluster whose first machine had a token asks for it: export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (there: ray "
        "get-auth-token) here and before each ray start; else compare the versions of Ray, and the address",
    )


def _machines() -> list[Mapping[str, float]]:
    return list(_alive().values())


def _alive() -> dict[str, Mapping[str, float]]:
    """{Ray's id of a machine: what it has}."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _shares(engine: Engine, roles: Sequence[str], machines: Sequence[Mapping[str, float]]) -> dict[str, Share]:
    """{pool: its share} of the pools in use. Raises ConfigError if they do not fit ``machines``."""
    placed = [engine.pool_of(role) for role in roles]
    largest = max(int(machine.get("CPU", 0)) for machine in machines)
    shares: dict[str, Share] = {}
    for name in dict.fromkeys(placed):
        pool = engine.pools[name]
        processes = placed.count(name) + (engine.judges - 1) * (name == engine.pool_of("judge"))
        shares[name] = Share(pool.cpus or largest, pool.gpus, processes)
    for name, pool in engine.pools.items():
        if pool.spare:
            spare = Share(pool.cpus or largest, pool.gpus, 0)
            if not any(_covers(spare, share) for share in shares.values()):
                raise ConfigError(
                    f"spare pool {name} ({spare.cpus} CPUs, {spare.gpus} GPUs) is too small to stand in for any pool in use",
                    where=f"engine.pools.{name}", fix="give it as many cpus and gpus as the pool that it is for",
                )  # fmt: skip
            shares[name] = spare
    for kind, amounts in (
        ("CPU", {name: share.cpus for name, share in shares.items()}),
        ("GPU", {name: share.gpus for name, share in shares.items()}),
    ):
        there = sorted((int(machine.get(kind, 0)) for machine in machines), reverse=True)
        if not _fit(list(amounts.values()), there):
            raise _refused(kind, amounts, there)
    return shares


def _fit(wanted: Sequence[int], there: Sequence[int]) -> bool:
    """Whether each of ``wanted`` finds room on one of the machines, the largest first onto the fullest that takes it."""
    room = list(there)
    for amount in sorted(wanted, reverse=True):
        fitting = [free for free in room if free >= amount]
        if not fitting:
            return False
        tight = min(fitting)
        room[room.index(tight)] = tight - amount
    return True


def _reserve_all(engine: Engine, shares: Mapping[str, Share], groups: list[PlacementGroup]) -> dict[str, Place]:
    """Pools in use side by side, then each spare one on a machine that has none of them; ``groups`` hears of each."""
    own = {name: share for name, share in shares.items() if not engine.pools[name].spare}
    groups.append(_reserve(own))
    places = {name: Place(groups[0], bundle) for bundle, name in enumerate(own)}
    taken = {place.node() for place in places.values()}
    refused: list[PlacementGroup] = []  # held meanwhile, so that the next one comes to lie elsewhere
    try:
        for name in [name for name in shares if name not in own]:
            if not any(_holds(machine, shares[name]) for node, machine in _alive().items() if node not in taken):
                raise ConfigError(
                    f"spare pool {name} finds no machine apart from those it would stand in for",
                    where=f"engine.pools.{name}", fix="add a machine to the cluster, or leave the pool out",
                )  # fmt: skip
            while (place := Place(_reserve({name: shares[name]}))).node() in taken:
                refused.append(place.group)
            places[name] = place
            groups.append(place.group)
    finally:
        for group in refused:
            remove_placement_group(group)
    return places


def _reserve(shares: Mapping[str, Share]) -> PlacementGroup:
    bundles = [{"CPU": share.cpus, **({"GPU": share.gpus} if share.gpus else {})} for share in shares.values()]
    group = placement_group(bundles, strategy="PACK")
    if not group.wait(RESERVE_SECONDS):
        remove_placement_group(group)
        free = [int(ray.available_resources().get("CPU", 0))]
        raise _refused("CPU", {name: share.cpus for name, share in shares.items()}, free, free=True)
    return group


def _refused(kind: str, wanted: Mapping[str, int], there: Sequence[int], *, free: bool = False) -> ConfigError:
    asked = ", ".join(f"{name} {amount}" for name, amount in wanted.items())
    has = " + ".join(map(str, there)) or "0"
    worst = max(wanted, key=lambda name: wanted[name])
    what = "free, the rest is in use" if free else f"on {len(there)} machine{'s' * (len(there) != 1)}"
    return ConfigError(
        f"the pools ask for {sum(wanted.values())} {kind}s ({asked}; each on one machine), the cluster has {has} {what}",
        where="engine.pools",
        fix=f"lower engine.pools.{worst}.{kind.lower()}s, place roles into one pool (engine.placement), or add machines",
    )
