"""How much less noise has the gradient with the worth of every move? `python exact_best_variance.py [TEMPERATURE] [RESAMPLES]`.

The same eight prompts are asked again and again, eight answers each, rewards by the rules; both estimators learn from the same
answers. The variance is the sum over all weights, unbiased; CPU-seconds are those of targets and gradient."""
import sys, time
from dataclasses import replace
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo.experience import StepFacts, collect
from rookworld_nb.grpo.step import Learner, _gradient, make_targets
from rookworld_nb.lm.loader import load_model


def main(temperature=0.7, resamples=12):
    model, tokenizer = load_model('nano')
    rows = load_rows('positions', 0.0, 0, 'train', 400)[:8]
    base = TrainConfig(reward_source='rules', env_ratio=0.0, max_new_tokens=24, kl_every=0, temperature=float(temperature), advantage_scale='batch')
    learners = {w: Learner(model, tokenizer, replace(base, exact_best=w)) for w in ('off', 'first', 'best')}
    n, squares, mean, spent = int(resamples), dict.fromkeys(learners, 0.0), dict.fromkeys(learners, 0.0), dict.fromkeys(learners, 0.0)
    for k in range(n):
        batch, _ = collect(model, tokenizer, rows, base, seed=k, scorer=learners['off'].scorer)
        for w, learner in learners.items():
            began = time.process_time()
            _gradient(learner, batch.rollouts, make_targets(learner, batch, StepFacts(1)))
            spent[w] += time.process_time() - began
            g = torch.cat([p.grad.flatten() for p in learner.parameters()]).double()
            mean[w], squares[w] = mean[w] + g/n, squares[w] + g.square().sum().item()
    variance = {w: (squares[w]/n - mean[w].square().sum().item())*n/(n - 1) for w in learners}
    for w in learners: print(f'{w}: variance {variance[w]:.4f}, {variance[w]/variance["off"]:.2f} of the sampled one; {spent[w]/n:.2f} CPU-seconds a step')


if __name__ == '__main__':
    torch.set_num_threads(1)
    main(*sys.argv[1:])
