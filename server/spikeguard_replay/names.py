"""What the columns of other people's logs are called: data, the likeliest name first.

Names are compared in one form: lower case, words joined by `_` (`canonical`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

STEP, LOSS = "step", "loss"
EPOCH, RANK = "epoch", "rank"
PROGRESS, PREFIX, BRACKETS = "progress", "line prefix", "in brackets"  # as console.py says
RANKS = (RANK, "line_prefix")
OVERFLOW = "overflows"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES: Mapping[str, tuple[str, ...]] = {
    STEP: _words("""
        global_step train_global_step trainer_global_step training_global_step num_updates step
        optimizer_step opt_step train_step training_step update_step current_steps
        global_step_max_steps completed_step steps iteration iter it train_iteration train_iter
        iter_train iterations iter_num iteration_number num_iterations update updates batch
        time_batch train_time_batch global_batch batch_idx batch_index s up global_iter _step
        index line_prefix progress in_brackets x epoch
    """),
    LOSS: _words("""
        reduced_train_loss loss train_loss training_loss lm_loss loss_train train_loss_step
        train_ce_loss train_cross_entropy_loss train_lm_loss loss_training tr_loss trl total_loss
        loss_total train_total_loss tot_loss gpt_loss train_loss_train_total loss_train_total
        train_loss_total batch_loss loss_metrics_global_avg_loss global_avg_loss avg_loss loss_avg
        loss_mean train_loss_mean train_avg_loss avg_train_loss train_train_loss ce_loss
        cross_entropy_loss cross_entropy train_cross_entropy nll_loss train_language_cross_entropy
        metrics_train_language_cross_entropy nll ce train_nll train_nll_loss lm_loss_value
        train_loss_epoch actor_loss actor_pg_loss actor_policy_loss policy_loss pg_loss pg cost
        train
    """),
    "grad_norm": _words("""
        grad_norm train_grad_norm training_grad_norm global_grad_norm gnorm gradient_norm
        grad_norm_total total_grad_norm optim_total_grad_norm grad_norm_avg norm gradnorm
        l2_norm_grad_global grad_l2_norm train_l2_norm_grad_global actor_grad_norm
        optimizer_grad_norm gradients_norm grad_norms grad_norm_global train_gnorm optim_grad_norm
        grad_global_norm grad g_norm grdn grad_norm_0_default l2_grads
    """),
    "lr": _words("""
        lr learning_rate train_lr train_learning_rate training_lr lr_adam_w
        optim_learning_rate_group0 optim_lr_group_0 optim_lr lr_group_0 base_lr train_lr_1e_3
        actor_lr lr_0 optimizer_lr optim_learning_rate lr_pg_1 lr_adam lr_adam_w_pg1
        train_lr_decoupled_adam_w_group0 lr_default lr_decoupled_adam_w_group0
        learning_rate_group_0 l_r
    """),
    "param_norm": _words("""
        param_norm params_norm parameter_norm weight_norm train_param_norm l2_norm_param_global
        optim_param_norm total_param_norm l2_params
    """),
    "update_norm": _words("update_norm train_update_norm optim_update_norm"),
    "adam_v_norm": _words("adam_v_norm exp_avg_sq_norm optim_exp_avg_sq_norm"),
    "tokens_per_second": _words("""
        tokens_per_second tokens_per_sec tokens_sec tok_sec tok_s tokens_s tps
        throughput_tokens_per_sec throughput_tokens_per_second wps
        throughput_device_tokens_per_second tokens_per_second_per_gpu tokens_s_device
    """),
    "step_time": _words("""
        step_time iter_time iteration_time elapsed_time_per_iteration_ms
        elapsed_time_per_iteration_s train_step_timing_in_s time_per_step dt iter_time_s seconds
        step_time_s step_ms dt_ms
    """),
    "loss_scale": _words("loss_scale scale grad_scale amp_scale loss_scaler"),
}

# Counts of iterations whose update was left out, or whose loss was not finite.
SKIPPED = ("number_of_skipped_iterations", "skipped_iterations", "skipped_iter", "step_skipped")
SKIPPED_SO_FAR = ("skipped", "skipped_steps", "num_skipped", "overflow_count", "overflows")
NAN = ("number_of_nan_iterations", "nan_iterations")

LOSS_LIKE = re.compile(r"(?:^|_)(?:[a-z]*loss|nll|xent|cross_entropy|ce)(?:_|$)")
STEP_LIKE = re.compile(r"(?:^|_)(?:step|iter|iteration|update)s?$")
NORM_LIKE = re.compile(r"(?:^|_)(?:grad|gradient)s?(?:_\w+)*_norm$")
LR_LIKE = re.compile(r"(?:^|_)(?:lr|learning_rate)(?:_|$)")
LIKE = {STEP: STEP_LIKE, LOSS: LOSS_LIKE, "grad_norm": NORM_LIKE, "lr": LR_LIKE}
# Of a part of the loss, or of something else: taken only where nothing better is there.
PARTS = re.compile(
    r"(?:^|_)(?:aux|auxiliary|z|kl|load|balance|balancing|router|moe|mtp|value|vf|critic|best|min|"
    r"max|std|ema|bbox|cls|mask|reg|penalty)(?:_|$)"
)
NO_LOSS = re.compile(r"(?:^|_)(?:scale|scaler|time|ppl|perplexity|entropy|weight|coef)(?:_|$)")
HELD_OUT = re.compile(
    r"(?:^|_)(?:val|valid|validation|eval|evaluation|test|dev|holdout|tel)(?:_|$)"
)
CLOCK = re.compile(
    r"(?:^|_)(?:time|timestamp|wall_time|date|datetime|epoch|elapsed|seconds)(?:_|$)"
)
TRAIN_WORDS = frozenset(("train", "training", "tr", "fit"))
HELD_OUT_WORDS = frozenset(
    ("val", "valid", "validation", "eval", "evaluation", "evaluate", "test", "dev", "holdout")
)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_JOINT = re.compile(r"[^a-z0-9]+")


def canonical(name: str) -> str:
    """`name` in the form that is compared: `Train/GradNorm (L2)` -> `train_grad_norm_l2`."""
    if name.startswith("_"):  # W&B's own: `_step`
        return "_" + canonical(name.lstrip("_"))
    return _JOINT.sub("_", _WORD.sub("_", name).lower()).strip("_")
