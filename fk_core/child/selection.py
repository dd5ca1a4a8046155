"""Judging what was selected: top-k, argmax, routing. Any set is right whose scores are as good as the best set's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fk_core.child.compare import Judgement, Rule, judge
from fk_core.child.elementwise import Yardstick, allowance
from fk_core.child.explain import explain

Reference = tuple[Tensor, Tensor | None]


def judge_topk(
    name: str,
    ids: Tensor,
    scores: Tensor,
    mag: Tensor | None,
    rule: Rule,
    *,
    values: Tensor | None = None,
    value_of: Callable[[Tensor], Reference] | None = None,
    value_rule: Rule | None = None,
    ordered: bool = False,
    score_dtype: torch.dtype = torch.float32,
) -> Judgement:
    """Judge ``ids`` (rows, k) against fp64 ``scores`` (rows, n).

    Rank by rank, the chosen scores must reach the best ones minus twice the error of a score: none where ``mag`` is
    None, the scores being given exactly. ``values`` are judged for the ids that were chosen: against the scores there,
    or against what ``value_of(ids)`` gives, such as weights normalised over the choice. ``ordered`` asks for falling
    scores.
    """
    if ids.shape[:-1] != scores.shape[:-1] or ids.dtype.is_floating_point:
        note = f"{name} is {ids.dtype}{list(ids.shape)}; expected integers, {list(scores.shape[:-1])} rows"
        return Judgement(name, False, "WRONG_DTYPE" if ids.dtype.is_floating_point else "WRONG_SHAPE", note=note)
    count, total = ids.shape[-1], scores.shape[-1]
    chosen = ids.to(torch.int64)
    best, best_ids = scores.topk(count, dim=-1)
    outside = (chosen < 0) | (chosen >= total)
    safe = chosen.clamp(0, total - 1)
    twins = safe.sort(dim=-1)
    repeated = torch.zeros_like(outside)
    repeated[..., 1:] = twins.values[..., 1:] == twins.values[..., :-1]
    repeated = torch.zeros_like(outside).scatter(-1, twins.indices, repeated)
    got = scores.gather(-1, safe)
    if mag is None:
        error = torch.zeros_like(scores)
    else:
        error = allowance(scores, mag, Yardstick(score_dtype, rule.limit, rule.u, generic=False))
    own, best_error = error.gather(-1, safe), error.gather(-1, best_ids)
    # Rank by rank: a set may hold equals of the k-th score and yet leave out a better one.
    ranked = got.sort(dim=-1, descending=True, stable=True)
    low = ranked.values < best - own.gather(-1, ranked.indices) - best_error
    wrong = outside | repeated | torch.zeros_like(outside).scatter(-1, ranked.indices, low)
    if ordered and count > 1:
        wrong[..., 1:] |= got[..., 1:] > got[..., :-1] + own[..., 1:] + own[..., :-1]
    if bool(wrong.any()):
        found = explain(wrong, ids, best_ids)
        note = "an id outside the range" if bool(outside.any()) else "an id chosen twice" if bool(repeated.any()) else (
            "a better score was left out, beyond the error of scores" if not ordered else "a worse or misplaced score"
        )  # fmt: skip
        return Judgement(
            name,
            False,
            "WRONG_VALUES",
            first_mismatch=found.first,
            share_wrong=found.share,
            pattern=found.pattern,
            note=note,
        )
    if values is None:
        return Judgement(name, True, max_abs_error=0.0, max_error_ratio=0.0)
    ref, ref_mag = value_of(chosen) if value_of else (got, None if mag is None else mag.gather(-1, chosen))
    return judge(f"{name}.values", values, ref, ref_mag, value_rule or Rule(generic=False))
