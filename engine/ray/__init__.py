"""The engine on a Ray cluster: each role an actor that hosts the in-process object, each port an adapter that asks it.

::

    driver (the loop)                     actors (one process each, placed by ``engine.placement``)
    ---------------------------------     ----------------------------------------------------------
    RemoteSampler -> Crew ---- work ----> SamplerActor    local.build(...).sampler
    RemoteLearner -> Host ---- update --> LearnerActor    local.build(...).learner
    RemoteScorer  -> Host ---- score ---> LearnerActor    the same, with the stage's first weights: the reference
    RemoteJudge   -> Crew ---- work ----> JudgeActor      LocalJudge, as many as ``engine.judges``

With ``engine.ranks`` a LearnerActor holds ``local.sharded(...)``: processes of its machine, which end with it. Weights go from
the learner to the samplers through Ray's object store, with their version. Nothing here is imported
unless a recipe says ``engine.home: ray``.
"""

from __future__ import annotations

import importlib.util
import os

from jurat.platform.errors import ConfigError

REPLAYED = 16
"""Updates of a learner after which a new snapshot takes the place of those that are kept."""


def needs_ray() -> None:
    """Say what Ray reads when it is imported. Raises ConfigError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # else escape codes, also into a log
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a call after the end would start a cluster of its own
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("the home ray needs Ray, which is not installed", where="engine.home",
                          fix="pip install 'ray[default]' (the extra ray), or set engine.home: local")  # fmt: skip
