"""What the columns of other people's logs are called: data, the likeliest name first.

Names are compared in one form: lower case, words joined by `_` (`canonical`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

STEP, LOSS = "step", "loss"
EPOCH, RANK = "epoch", "rank"
EVALUATION = "rows of evaluation"
PROGRESS, PREFIX, BRACKETS = "progress", "line prefix", "in brackets"  # as console.py says
RANKS = (RANK, "line_prefix")
LAST = (PROGRESS, "in_brackets", "index", "x", EPOCH)  # they count steps if nothing else does
OVERFLOW = "overflows"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Words that say nothing of which signal a column holds: `train/loss` is `loss`.
FILLERS = frozenset(("train", "training", "trainer", "optim", "optimizer", "actor", "metrics"))

NAMES: Mapping[str, tuple[str, ...]] = {
    STEP: _words("""
        global_step train_global_step trainer_global_step training_global_step num_updates step
        optimizer_step opt_step update_step current_steps global_step_max_steps completed_step steps
        iteration iter it iterations iter_num iteration_number num_iterations iter_train update
        updates batch time_batch train_time_batch global_batch batch_idx batch_index s up
        global_iter _step schritt paso passo étape etape шаг 步数 步 迭代 ステップ 스텝 index
        line_prefix progress in_brackets x epoch
    """),
    LOSS: _words("""
        reduced_loss loss lm_loss loss_step tr_loss trl total_loss loss_total tot_loss gpt_loss
        batch_loss loss_global_avg_loss global_avg_loss avg_loss loss_avg loss_mean ce_loss
        cross_entropy_loss cross_entropy nll_loss language_cross_entropy nll ce lm_loss_value
        loss_epoch policy_loss pg_loss pg cost verlust perte pérdida perda потери 损失 損失 손실
        learn train bpb bits_per_byte bpc bits_per_character
    """),
    "grad_norm": _words("""
        grad_norm global_grad_norm gnorm gradient_norm grad_norm_total total_grad_norm grad_norm_avg
        norm gradnorm l2_norm_grad_global grad_norms grad_norm_global grad g_norm grdn
        grad_norm_0_default l2_grads global_norm
    """),
    "lr": _words("lr learning_rate l_r lernrate 学习率 学習率 학습률"),
    "param_norm": _words("""
        param_norm params_norm parameter_norm weight_norm l2_norm_param_global total_param_norm
        l2_params learning_param_norm
    """),
    "update_norm": _words("update_norm"),
    "adam_v_norm": _words("adam_v_norm exp_avg_sq_norm"),
    "tokens_per_second": _words("""
        tokens_per_second tokens_per_sec tokens_sec tok_sec tok_s tokens_s tps
        throughput_tokens_per_sec throughput_tokens_per_second wps
        throughput_device_tokens_per_second tokens_per_second_per_gpu tokens_s_device
    """),
    "step_time": _words("""
        step_time iter_time iteration_time elapsed_time_per_iteration_ms
        elapsed_time_per_iteration_s time_per_iteration_ms step_timing_in_s time_per_step dt
        iter_time_s seconds step_time_s step_ms dt_ms per_step_time perf_step_time_seconds
    """),
    "loss_scale": _words("loss_scale scale grad_scale amp_scale loss_scaler"),
}

# Counts of iterations whose update was left out, or whose loss was not finite.
SKIPPED = ("number_of_skipped_iterations", "skipped_iterations", "skipped_iter", "step_skipped")
SKIPPED_SO_FAR = ("skipped", "skipped_steps", "num_skipped", "overflow_count", "overflows")
NAN = ("number_of_nan_iterations", "nan_iterations")

LIKE = {
    STEP: re.compile(r"(?:^|_)(?:step|iter|iteration|update)s?$"),
    LOSS: re.compile(r"(?:^|_)(?:[a-z]*loss(?:es)?|nll|xent|cross_entropy|ce)(?:_|$)"),
    "grad_norm": re.compile(r"(?:^|(?<!max)(?<!clip)_)(?:grad|gradient)s?(?:_\w+)*_norm$"),
    "lr": re.compile(r"(?:^|_)(?:lr|learning_rate)\d*(?:_|$)"),
}


def _one_of(words: str) -> re.Pattern[str]:
    """A name that has one of these among its words."""
    return re.compile(rf"(?:^|_)(?:{'|'.join(words.split())})(?:_|$)")


# Of a part of the loss, or of something else: taken only where nothing better is there.
PARTS = _one_of(
    "aux auxiliary z kl load balance balancing router moe mtp value vf critic best min max std "
    "bbox box cls dfl mask reg penalty"
)
AVERAGES = _one_of("avg avr average averaged mean ema ewma smooth smoothed running moving")
NO_LOSS = _one_of("scale scaler time timestamp ppl perplexity entropy weight coef num count tokens")
HIGH_IS_GOOD = _one_of(
    "acc accuracy accuracies acc1 acc5 top1 top5 reward rewards return returns score f1 bleu rouge "
    "auc psnr ssim iou miou map precision recall r2"
)
HELD_OUT_WORDS = _words("val valid validation eval evaluation evaluate test dev holdout tel")
HELD_OUT = _one_of(" ".join(HELD_OUT_WORDS))
CLOCK = _one_of("time timestamp date datetime epoch elapsed seconds")
TOKENS = _one_of("tokens samples examples flops")  # a step counts many
LOGGERS = _one_of(  # what a logger adds to each line
    "time timestamp date datetime epoch elapsed seconds rank pid process thread line lineno level "
    "levelno severity flags created msecs"
)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_JOINT = re.compile(r"[\W_]+")


def canonical(name: str) -> str:
    """`name` in the form that is compared: `Train/GradNorm (L2)` -> `train_grad_norm_l2`."""
    if name.startswith("_"):  # W&B's own: `_step`
        return "_" + canonical(name.lstrip("_"))
    return _JOINT.sub("_", _WORD.sub("_", name).lower()).strip("_")


def without_fillers(short: str, ours: str) -> str:
    """`short`, which is canonical, as the names of the signal `ours` are written in `NAMES`."""
    kept = short.split("_") if ours == STEP or short.startswith("optim_step") else ()
    words = kept or [word for word in short.split("_") if word not in FILLERS]
    return "_".join(words) or short
