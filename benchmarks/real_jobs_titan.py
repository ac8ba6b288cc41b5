"""torchtitan's own Trainer on CPUs: `python -m benchmarks.real_jobs_titan LAYOUT`.

Its llama3 debug model, smaller, with its FSDP2, HSDP, tensor and pipeline parallelism, its
optimizer container and its schedule; the data are this benchmark's, by torchtitan's interface.
torchtitan asks for an accelerator in a few places; `_on_cpu` answers there. Nothing of it is about
what the guard touches.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.real_jobs_loops import LR, SPARE, WARMUP
from benchmarks.real_jobs_probe import install
from benchmarks.real_jobs_text import CONTEXT, SEED, Plan, item_at
from spikeguard_trainer.model import VOCABULARY

LAYOUTS: dict[str, dict[str, int]] = {  # of `ParallelismConfig`
    "container": {},
    "fsdp2": {"data_parallel_shard_degree": 2},
    "hsdp": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2},
    "tp": {"tensor_parallel_degree": 2},
    "pp": {"pipeline_parallel_degree": 2},
    "pp_fsdp2": {"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 2},
}
TAKEN, MICRO_ROWS = 4, 2  # rows of an item, and of a pipeline's micro-batch


def ranks_of(layout: str) -> int:
    return math.prod(LAYOUTS[layout].values())


def _on_cpu() -> None:
    """Before torchtitan is imported: the device it finds is the CPU."""
    import torch._utils as found

    def nothing(*_: Any, **__: Any) -> None:
        return None

    device: Any = SimpleNamespace(
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=nothing,
        synchronize=nothing,
        empty_cache=nothing,
        reset_peak_memory_stats=nothing,
        memory_stats=lambda *_: {},
        get_device_name=lambda *_: "cpu",
        get_device_properties=lambda *_: SimpleNamespace(total_memory=1 << 33, name="cpu"),
    )
    found._get_available_device_type = lambda: "cpu"
    found._get_device_module = lambda _: device  # type: ignore[assignment]


def _without_accelerator() -> None:
    """After it is imported: plain causal attention, and sums that gloo knows."""
    from torch.distributed.fsdp import FSDPModule

    attention = import_module("torchtitan.models.common.attention")
    decoder = import_module("torchtitan.models.common.decoder")
    trainer = import_module("torchtitan.trainer")

    def causal(self: Any, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, **_: Any) -> Any:
        del self
        query, key, value = (each.transpose(1, 2) for each in (q_BLNH, k_BLNH, v_BLNH))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return mixed.transpose(1, 2)

    attention.FlexAttention.forward = causal
    decoder.Decoder.get_attention_masks = lambda *_, **__: None
    trainer.dist_utils.set_pg_timeouts = lambda *_, **__: None
    divide = FSDPModule.set_gradient_divide_factor

    def divide_plainly(self: Any, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that multiplies
        divide(self, factor)

    FSDPModule.set_gradient_divide_factor = divide_plainly  # type: ignore[method-assign]
    _take_micro_batches()


def _take_micro_batches() -> None:
    """torchtitan hands a schedule its micro-batches; torch 2.13 cuts a batch itself."""
    from torch.distributed.pipelining import schedules

    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):

        def step(self: Any, **named: Any) -> None:
            stages = getattr(self, "_stages", None) or [self._stage]
            for stage in stages:
                stage.has_backward = self._has_backward
                stage.clear_runtime_states()
            count = self._n_microbatches
            self._step_microbatches(
                named["arg_mbs"] or [()] * count,
                named["kwarg_mbs"],
                named["target_mbs"],
                named["losses"],
                named["return_outputs"],
                loss_kwargs=named["loss_kwargs"],
            )

        kind.step = step  # type: ignore[method-assign,assignment]


def _data(plan: Plan, per_rank: int) -> Any:
    """A data loader by torchtitan's interface, with a state."""
    base = import_module("torchtitan.components.dataloader").BaseDataLoader

    class Text(base):  # type: ignore[misc,valid-type]
        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):  # type: ignore[name-defined,misc]
            pass

        def __init__(self, config: Any, *, dp_rank: int, dp_world_size: int, **_: Any) -> None:
            self.config, self.read = config, 0
            self.rank, self.ranks = dp_rank, dp_world_size

        def __iter__(self) -> Iterator[Any]:
            while self.read < per_rank * (plan.steps + SPARE):
                index, self.read = self.read, self.read + 1
                item = item_at(plan, index, micro=per_rank, rank=self.rank, ranks=self.ranks)
                rows = item[: TAKEN // per_rank]
                yield {"input": rows[:, :-1].contiguous()}, rows[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {"read": self.read}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.read = int(state["read"])

    return Text.Config()


def _tokens() -> Any:
    """Bytes: nothing is encoded here."""
    base = import_module("torchtitan.components.tokenizer").BaseTokenizer

    class Bytes(base):  # type: ignore[misc,valid-type]
        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):  # type: ignore[name-defined,misc]
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()
            self.config = config

        def encode(self, *_: Any, **__: Any) -> list[int]:
            return []

        def decode(self, *_: Any, **__: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return VOCABULARY

    return Bytes.Config()


def configuration(plan: Plan, layout: str) -> Any:
    """As a user has one, from torchtitan's registry."""
    registry = import_module("torchtitan.models.llama3.config_registry")
    config = registry.llama3_debugmodel()
    model = config.model_spec.model
    del model.layers[2:]
    model.vocab_size = model.tok_embeddings.num_embeddings = VOCABULARY
    model.lm_head.out_features = VOCABULARY
    pipeline = LAYOUTS[layout].get("pipeline_parallel_degree", 1) > 1
    config.tokenizer = _tokens()
    config.dataloader = _data(plan, TAKEN // MICRO_ROWS if pipeline else 1)
    config.dump_folder, config.validator.enable = plan.out, False
    config.checkpoint.enable = config.compile.enable = False
    config.activation_checkpoint, config.debug.seed = None, SEED
    training, parallel = config.training, config.parallelism
    training.disable_cuda_graphs = True
    training.local_batch_size, training.seq_len, training.steps = TAKEN, CONTEXT, plan.steps
    optimizers = import_module("torchtitan.components.optimizer")
    config.optimizer = optimizers.default_adamw(lr=LR)
    config.lr_scheduler.warmup_steps = WARMUP
    config.metrics.log_freq = 1_000
    parallel.spmd_backend = "partial_dtensor"  # what torch 2.13 knows
    for name, degree in LAYOUTS[layout].items():
        setattr(parallel, name, degree)
    if pipeline:
        parallel.pipeline_parallel_schedule = "1F1B"
        parallel.pipeline_parallel_microbatch_size = MICRO_ROWS
    return config


def train(plan: Plan, layout: str) -> None:
    """torchtitan's `main`, with what spikeguard adds."""
    from spikeguard.integrations.torchtitan import watch  # +

    trainer = configuration(plan, layout).build()
    watch(trainer, run="titan", every=plan.checkpoint_every)  # +
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


def main(layout: str) -> int:
    """Run one layout under the plan in the environment."""
    plan = Plan.read()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    Path(plan.out).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    _on_cpu()
    import_module("torchtitan.trainer")
    _without_accelerator()
    install(plan)
    train(plan, layout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
