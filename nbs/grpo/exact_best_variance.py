"""How much less noise has the gradient with the worth of every move? `python exact_best_variance.py [OUT.csv] [RESAMPLES]`.

The same eight prompts are asked again and again, eight answers each, rewards by the rules; both estimators learn from the same
answers. The variance is the sum over all weights, unbiased; CPU-seconds are those of targets and gradient."""
import sys, time
from dataclasses import replace
import pandas as pd
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.experience import StepFacts, collect
from rookworld_nb.grpo.step import Learner, _gradient, make_targets
from rookworld_nb.lm.loader import load_model

WAYS = ('off', 'first', 'candidates', 'best')


def variances(model, tokenizer, rows, temperature, n):
    "One row for each way."
    base = TrainConfig(data='positions', reward_source='rules', env_ratio=0.0, max_new_tokens=24, kl_every=0, temperature=temperature, advantage_scale='batch')
    learners = {w: Learner(model, tokenizer, replace(base, exact_best=w)) for w in WAYS}
    squares, mean, spent = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0)
    for k in range(n):
        batch, _ = collect(model, tokenizer, rows, base, seed=k, scorer=learners['off'].scorer)
        for w in WAYS[k % len(WAYS):] + WAYS[:k % len(WAYS)]:   # by turns: who comes first may find cold memory
            began = time.process_time()
            _gradient(learners[w], batch.rollouts, make_targets(learners[w], batch, StepFacts(1)))
            spent[w] += time.process_time() - began
            g = torch.cat([p.grad.flatten() for p in learners[w].parameters()]).double()
            mean[w], squares[w] = mean[w] + g/n, squares[w] + g.square().sum().item()
    variance = {w: (squares[w]/n - mean[w].square().sum().item())*n/(n - 1) for w in WAYS}
    return [dict(temperature=temperature, exact_best=w, variance=variance[w], of_sampled=variance[w]/variance['off'], cpu_seconds=spent[w]/n, resamples=n) for w in WAYS]


def main(out='exact_best_variance.csv', resamples=12):
    model, tokenizer = load_model('nano')
    rows = load_rows('positions', 0.0, 0, 'train', 400)[:8]
    found = pd.DataFrame([r for t in (0.7, 1.0) for r in variances(model, tokenizer, rows, t, int(resamples))])
    found.round(4).to_csv(out, index=False)
    print(found.round(3).to_string(index=False))


if __name__ == '__main__':
    if {'-h', '--help'} & {*sys.argv}: sys.exit(__doc__)
    torch.set_num_threads(1)
    main(*sys.argv[1:])
