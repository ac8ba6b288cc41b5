"""What known tools print, as data: a line of each, what it says, and a pattern where it needs one.

Most are read by the general reader of names and numbers (`console.py`): their lines stand here to
be tested. Lines were taken from public logs; only figures were shortened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Printed:
    """What one tool prints at a step."""

    tool: str
    line: str  # several lines where it prints one record so
    says: tuple[float | None, ...]  # step, loss, gradient norm, learning rate; None = not in it
    pattern: str = ""  # with groups named as columns, where names and numbers alone do not do


_TITAN = "[rank0]:[titan] 2025-10-30 14:32:58,897 - root - INFO - "
_BAR = " 34%|███▍      | 34/100 [00:31<01:04,  1.02it/s]"

CONSOLES: Final = (
    Printed(
        "torchtitan",
        f"{_TITAN}step:  7  loss:  8.1234  grad_norm:  1.4567  memory:  2.47GiB(3.12%)  tps: 3,502  "
        "tflops: 1.90  mfu: 0.19%",
        (7, 8.1234, 1.4567, None),
    ),
    Printed(
        "nanoGPT", "iter 10: loss 10.2659, time 1099.34ms, mfu 15.34%", (10, 10.2659, None, None)
    ),
    Printed(
        "nanochat",
        "step 00040/21400 (0.19%) | loss: 8.123456 | grad norm: 0.8123 | lrm: 1.00 | dt: 1012.34ms | "
        "tok/sec: 517,901 | mfu: 47.12 | total time: 0.51m",
        (40, 8.123456, 0.8123, None),
    ),
    Printed(
        "modded-nanogpt",
        "step:125/5100 train_loss:6.4382 train_time:17862ms step_avg:155.32ms",
        (125, 6.4382, None, None),
    ),
    Printed(
        "llm.c",
        "step    2/21479 | loss 10.829729 (+nanz)| norm 15.0011 (+nanz)| lr 5.71e-06 | 2391.52 ms | "
        "-100.0% bf16 MFU | 191824 tok/s",
        (2, 10.829729, 15.0011, 5.71e-06),
    ),
    Printed("llm.c main.log", "s:12 trl:9.4512 lr:0.000010 norm:4.21", (12, 9.4512, 4.21, 1e-05)),
    Printed(
        "Hugging Face Trainer",
        "{'loss': 2.075, 'grad_norm': 0.91, 'learning_rate': 0.000232, 'epoch': 0.04}",
        (None, 2.075, 0.91, 0.000232),
    ),
    Printed(
        "Hugging Face Trainer with a bar",
        _BAR + "\n{'loss': 2.075, 'grad_norm': nan, 'learning_rate': 0.000232, 'epoch': 0.04}",
        (34, 2.075, float("nan"), 0.000232),
    ),
    Printed(
        "ms-swift",
        "{'loss': '1.61', 'grad_norm': '4.2', 'learning_rate': '1e-05', 'token_acc': '0.62', "
        "'global_step/max_steps': '5/120', 'elapsed_time': '9s'}",
        (5, 1.61, 4.2, 1e-05),
    ),
    Printed(
        "Megatron-LM",
        " [2025-01-02 03:04:05] iteration       12/     500 | consumed samples:          768 | elapsed "
        "time per iteration (ms): 1234.5 | learning rate: 1.000000E-04 | global batch size:    64 | "
        "lm loss: 9.674310E+00 | loss scale: 1.0 | grad norm: 2.132 | number of skipped iterations:   "
        "0 | number of nan iterations:   0 |",
        (12, 9.67431, 2.132, 1e-4),
    ),
    Printed(
        "NeMo",
        "[NeMo I 2025-01-01 10:00:00 log:393] Training epoch 0, iteration 4/154 | lr: 3e-05 | "
        "global_batch_size: 512 | global_step: 158 | reduced_train_loss: 6.24578 | "
        "consumed_samples: 2560",
        (158, 6.24578, None, 3e-05),
    ),
    Printed(
        "NeMo with a bar",
        "Epoch 0: :  47%|████▋     | 7/15 [06:19<07:13, loss=11.8, v_num=gjbq, reduced_train_loss="
        "11.50, global_step=5.000, consumed_samples=12288.0, train_step_timing in s=49.50]",
        (5, 11.5, None, None),
    ),
    Printed(
        "GPT-NeoX",
        " samples/sec: 4.9 | iteration       31/   55000 | elapsed time per iteration (ms): 6524.7 | "
        "learning rate: 1.0E-04 | lm_loss: 9.724390E+00 | loss scale: 4096.0 | number of skipped "
        "iterations:   0 |",
        (31, 9.72439, None, 1e-4),
    ),
    Printed(
        "Megatron-DeepSpeed",
        " iteration       20/   95367 | consumed samples:         5120 | consumed tokens:     10485760 | "
        "elapsed time per iteration (s): 11.43 | learning rate: 3.200E-06 | global batch size:   256 | "
        "lm loss: 9.812300E+00 | loss scale: 1.0 | grad norm: 5.112 | actual seqlen:  2048 | number of "
        "skipped iterations:   0 | number of nan iterations:   0 | TFLOPs: 101.20 |",
        (20, 9.8123, 5.112, 3.2e-06),
    ),
    Printed(
        "DeepSpeed's pipeline",
        "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 "
        "samples/sec: 136.706",
        (200, 5.5508, None, None),
    ),
    Printed(
        "torchtune",
        "1|34|Loss: 1.7553240060806274:  68%|██████▊   | 34/50 [00:21<00:09,  1.64it/s]",
        (34, 1.7553240060806274, None, None),
        r"^\s*(?P<epoch>\d+)\|(?P<step>\d+)\|Loss: (?P<loss>[-+\w.]+)",
    ),
    Printed(
        "torchtune's log",
        "Step 34 | loss:1.7553 lr:2e-05 tokens_per_second_per_gpu:1894.5 grad_norm:3.21",
        (34, 1.7553, 3.21, 2e-05),
    ),
    Printed(
        "litgpt",
        "Epoch 1 | iter 64 step 4 | loss train: 10.914, val: n/a | iter time: 356.48 ms (step) "
        "remaining time: 1 day, 2:41:05",
        (4, 10.914, None, None),
    ),
    Printed(
        "OLMo",
        "[2024-04-17 09:42:38] INFO     [olmo.train:816, rank=0] [step=2/739328]\n"
        "    train/CrossEntropyLoss=10.73\n    train/Perplexity=45,773\n"
        "    optim/total_grad_norm=2.481\n    throughput/device/tokens_per_second=45,538",
        (2, 10.73, 2.481, None),
    ),
    Printed(
        "OLMo-core",
        "2026-08-08 12:01:00 INFO [olmo_core.train.callbacks.console_logger:68] "
        "[step=100/2000,epoch=0,eta=5h11m]\n    optim/LR (group 0)=0.0002\n"
        "    optim/total grad norm=1.204\n    train/CE loss=6.2341\n    train/PPL=511.9",
        (100, 6.2341, 1.204, 0.0002),
    ),
    Printed(
        "composer, llm-foundry",
        "0: [epoch=1][batch=5/300]:\n0: \t Train time/epoch: 0\n0: \t Train loss/train/total: 8.4213\n"
        "0: \t Train metrics/train/LanguageCrossEntropy: 8.4620\n"
        "0: \t Train l2_norm/grad/global: 0.7712\n0: \t Train throughput/tokens_per_sec: 20082.8",
        (5, 8.4213, 0.7712, None),
    ),
    Printed(
        "fairseq",
        '2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.002, "loss": "9.695", '
        '"num_updates": "100", "lr": "6e-06", "gnorm": "0.8976", "loss_scale": "16"}',
        (100, 9.695, 0.8976, 6e-06),
    ),
    Printed(
        "fairseq, simple",
        "2021-03-08 12:31:36 | INFO | train_inner | epoch 001:    200 / 4000 loss=7.987, ppl=253.7, "
        "wps=9912, ups=1.2, num_updates=200, lr=1.2e-05, gnorm=0.811, loss_scale=16",
        (200, 7.987, 0.811, 1.2e-05),
    ),
    Printed(
        "mmengine",
        "07/03 13:04:17 - mmengine - INFO - Epoch(train)  [1][ 10/196]  lr: 3.3333e-04  eta: 0:13:14  "
        "time: 0.4073  data_time: 0.0335  memory: 970  grad_norm: 8.5647  loss: 6.1887  loss_cls: 0.7",
        (10, 6.1887, 8.5647, 3.3333e-04),
    ),
    Printed(
        "nanotron",
        "08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 15 | consumed_tokens: 1.02K | "
        "elapsed_time_per_iteration_ms: 4.71K | tokens_per_sec: 109 | lm_loss: 5.32 | lr: 0.00015 | "
        "grad_norm: 2.96 | cuda_memory_allocated: 67.4M",
        (2, 5.32, 2.96, 0.00015),
    ),
    Printed(
        "verl",
        "(TaskRunner pid=247607) step:1 - global_seqlen/min:159906 - actor/entropy:0.0976 - "
        "actor/pg_loss:-0.0036 - actor/grad_norm:np.float64(0.2057) - actor/lr:1e-06 - "
        "training/global_step:1 - critic/score/mean:0.0888",
        (1, -0.0036, 0.2057, 1e-06),
    ),
    Printed(
        "mlx-lm",
        "Iter 10: Train loss 2.003, Learning Rate 1.000e-05, It/sec 0.120, Tokens/sec 115.811, "
        "Trained Tokens 9640, Peak mem 14.402 GB",
        (10, 2.003, None, 1e-05),
    ),
    Printed(
        "axolotl, unsloth",
        "{'loss': 1.1042, 'grad_norm': 0.5312, 'learning_rate': 2e-05, 'memory/max_active (GiB)': 21.4, "
        "'epoch': 0.02}",
        (None, 1.1042, 0.5312, 2e-05),
    ),
    Printed(
        "levanter",
        "2026-03-09 02:46:35 INFO Progress on:train 11.0it/18.0it rate:34.5s/it remaining:04:01 "
        "elapsed:17:46 postfix:loss=15.5",
        (11, 15.5, None, None),
        r"Progress on:train (?:(?P<step>[\d.]+)|[\d.]+[kM])it/.*?loss=(?P<loss>[-+\w.]+)",
    ),
    Printed(
        "MaxText",
        "I0804 08:14:00.000000 1 metric_logger.py:196] completed step: 7, seconds: 6.051, "
        "TFLOP/s/device: 451.236, Tokens/s/device: 8123.462, total_weights: 393216, loss: 6.765, "
        "lm_loss: 6.7, perplexity: 10.0",
        (7, 6.765, None, None),
    ),
    Printed(
        "Keras",
        "Epoch 1/10\n157/1875 ━━━━━━━━━━━━━━━━━━━━ 3s 2ms/step - accuracy: 0.8011 - loss: 0.6501",
        (157, 0.6501, None, None),
    ),
    Printed(
        "open_clip",
        "2023-04-21,12:03:20 | INFO | Train Epoch: 0 [  32768/3200000 (1%)] Data (t): 0.029 Batch (t): "
        "6.655, 2461.78/s, 76.9308/s/gpu LR: 0.000031 Logit Scale: 14.286 Contrastive_loss: 9.7031 "
        "(9.7031) Loss: 9.7031 (9.7031)",
        (32768, 9.7031, None, 3.1e-05),
    ),
    Printed(
        "Lightning's bar",
        "Epoch 0:   5%|▌         | 3/62 [02:59<58:44,  0.02it/s, v_num=8-06, train_loss_step=6.930]",
        (3, 6.93, None, None),
    ),
)
PATTERNS: Final = tuple(re.compile(one.pattern) for one in CONSOLES if one.pattern)
