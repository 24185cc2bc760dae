"""Why does R1 gain what it gains? `python claim_reasons.py PLAN.toml OUT [OUT ...]` asks what the models of the screening do, and writes
claim_reasons.parquet and claim_reasons_steps.csv beside this file.

Every model answers the first 500 prompts of the shipped eval split greedily and eight times at each of two temperatures: that of training, and 1.
A row of the parquet is one prompt at one temperature of one model (arm, seed, and `weights`, the start of a SHA-256 as in claim_measured.csv):
the greedy answer (0 or 1 for each of `ASKED`), the share of the eight that are right (pass@1), whether any is (pass@8); how many of the eight
are different texts, the highest and the lowest of their rewards by the rules (where they are equal, GRPO learns nothing from the group), and the
KL to the starting model in nats a token, estimated from the eight. The CSV has what training recorded step by step. OUT holds the runs of `claim_arms.py`: ARM-RATE-SEED/state.pt."""
import sys
from pathlib import Path
from types import SimpleNamespace
import pandas as pd
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.files import read_rows, write_at_once
from rookworld_nb.lm.generate import completion_logits, generate, sampling_logits
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import judge_texts
from rookworld_nb.reward.scoring import Scorer
from claim_arms import LIMITS, Run
from claim_plan import read_plan

ASKED = ['legal_best', 'coherence', 'best_move']
ARMS = ['R1', 'S1', 'S4', 'D1', 'D2']
KEPT = ['reward_mean', 'best_reward', 'zero_signal_share', 'kl_nats_per_token', 'entropy_nats', 'distinct_share', 'cpu_s']
N, G, BATCH = 500, 8, 50


def log_probs(model, rollouts):
    "(B, T) of the drawn tokens, under the distribution of a model at the temperature of the sampling."
    logits = sampling_logits(completion_logits(model, rollouts), rollouts)
    return logits.log_softmax(-1).gather(-1, rollouts.completion_ids[..., None])[..., 0]


@torch.no_grad()
def answers(model, start, tokenizer, rows, temperature):
    "One row per prompt: see the top of this file."
    found, scorer = [], Scorer('rules')
    for at in range(0, len(rows), BATCH):
        some = rows[at:at+BATCH]
        prompts = [e.prompt(tokenizer.style) for e in some]
        greedy = generate(model, tokenizer, prompts, 1, LIMITS['P'], 0.0).completions
        said = generate(model, tokenizer, prompts, G, LIMITS['P'], temperature, seed=at)
        texts = [said.completions[i*G:(i+1)*G] for i in range(len(some))]
        once, judged = judge_texts(some, [[t] for t in greedy]), judge_texts(some, texts).groupby('index')[ASKED]
        worth = torch.tensor([s.total for s in scorer.score(some, said.completions)]).view(-1, G)
        gap = (log_probs(model, said) - log_probs(start, said)).masked_fill(~said.completion_mask, 0).sum(1).view(-1, G)
        tokens = said.completion_mask.sum(1).view(-1, G)
        found.append(pd.DataFrame(dict(prompt=prompts, temperature=temperature, **{f'greedy_{a}': once[a].to_numpy(float) for a in ASKED},
            **{f'pass1_{a}': judged.mean()[a].to_numpy() for a in ASKED}, **{f'pass8_{a}': judged.max()[a].to_numpy(float) for a in ASKED},
            different=[len(set(group)) for group in texts], reward_mean=worth.mean(1), reward_max=worth.max(1).values, reward_min=worth.min(1).values,
            kl=(gap.sum(1)/tokens.sum(1)))))
    return pd.concat(found, ignore_index=True)


def main(plan, *outs):
    plan, here = read_plan(plan), Path(__file__).parent
    torch.set_num_threads(plan['base']['threads'])
    rows = load_rows(plan['base']['data'], 0.0, 0, 'eval', N)[:]
    start, tokenizer = load_model(plan['base']['model'])
    model, _ = load_model(plan['base']['model'])
    found, steps = [], []
    states = [('start', 0, None)] + [(arm, int(file.parent.name.rpartition('-')[2]), file) for arm in ARMS for seed in (0, 1) for out in outs
                                     for file in sorted(Path(out).glob(f'{arm}-*-{seed}/state.pt')) if (file.parent/'at-screening-420.csv').exists()]
    for arm, seed, file in states:
        if file: model.load_state_dict(torch.load(file, weights_only=True)['model'])
        weights = Run.weights(SimpleNamespace(model=model))
        for temperature in (plan['base']['temperature'], 1.0):
            found.append(answers(model, start, tokenizer, rows, temperature).assign(arm=arm, seed=seed, weights=weights))
            print(arm, seed, weights, found[-1].drop(columns=['prompt', 'arm', 'seed', 'weights']).mean().round(3).to_dict(), flush=True)
        if file: steps += [dict(arm=arm, seed=seed, step=row['step'], **{k: row.get(k) for k in KEPT}) for row in read_rows(file.parent/'steps.jsonl') if 'zero_signal_share' in row]
    table = pd.concat(found, ignore_index=True)
    write_at_once(here/'claim_reasons.parquet', lambda path: table.to_parquet(path, index=False))
    write_at_once(here/'claim_reasons_steps.csv', lambda path: pd.DataFrame(steps).round(4).to_csv(path, index=False, lineterminator='\n'))


if __name__ == '__main__': main(*sys.argv[1:])
