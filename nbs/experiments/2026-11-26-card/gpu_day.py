"""What to do with a GPU, in pieces of ten minutes: `python nbs/experiments/2026-11-26-card/gpu_day.py --out DIR [--piece NAME ...] [--small]`.

A piece appends every measurement to DIR/PIECE.csv as it is made, and says in DIR/PIECE.json on which card, with which torch, commit and
seed, whether it came to its end, and what it found. Called again, it does the pieces that are not finished. `nano_card.py` makes labels for `nano`. `--small` rehearses all of
it on a CPU in about a minute: the same code, toy sizes."""
import argparse
import json
import math
import platform
import subprocess
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
import pandas as pd
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.files import write_at_once
from rookworld_nb.grpo import step as learning
from rookworld_nb.grpo.experience import PromptSource
from rookworld_nb.grpo.grpo import group_advantages, policy_loss, token_logprobs
from rookworld_nb.grpo.step import Learner, train_step
from rookworld_nb.fast import device
from rookworld_nb.fast.generate import completion_logits, generate, sampling_logits
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.lm.model import GPT, PRESETS
from rookworld_nb.lm.tokenizer import load_tokenizer
from rookworld_nb.reward.scoring import make_scorer
from rookworld_nb.run.health import process_memory_gb
from rookworld_nb.run.train import train

SEED, TOKENS = 0, 60                                   # of everything; new tokens of a sample, as in the comparison on a CPU
PIECES = {}
torch._dynamo.config.recompile_limit = 64                # one way to compile a step for each shape


def piece(work): return PIECES.setdefault(work.__name__, work)


class Day:
    "Where results go, and how large everything is."
    def __init__(self, out, small, minutes):
        self.out, self.small, self.seconds, self.gpu = Path(out), small, 60*minutes, torch.cuda.is_available()
        self.out.mkdir(parents=True, exist_ok=True)
        self.device, self.tokens, self.rounds = 'cuda' if self.gpu else 'cpu', 6 if small else TOKENS, 1 if small else 3
        self.shapes = [(2, 2), (4, 2)] if small else [(8, 8), (64, 4)]        # prompts, group size

    def about(self):
        git = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
        return dict(card=torch.cuda.get_device_name() if self.gpu else 'none', processor=platform.machine(), torch=torch.__version__, commit=git or 'unknown',
                    seed=SEED, small=self.small)

    def do(self, name):
        self.file, self.name, self.began, self.rows = self.out/f'{name}.csv', name, time.monotonic(), []
        told = self.about() | dict(piece=name, finished=False)
        write_at_once(self.out/f'{name}.json', json.dumps(told, indent=1) + '\n')
        found = PIECES[name](self) or {}
        told |= dict(finished=not self.late() or found.pop('finished', False), seconds=round(time.monotonic() - self.began, 1), found=found)
        write_at_once(self.out/f'{name}.json', json.dumps(told, indent=1) + '\n')
        print(f'{name}: {json.dumps(found)}', flush=True)

    def add(self, **row):
        "One measurement, on disk at once."
        self.rows.append(row)
        pd.DataFrame(self.rows).to_csv(self.file, index=False)

    def late(self): return time.monotonic() - self.began > self.seconds

    def large(self, n_positions=256):
        "The shape of RookWorld-LM-124M with random weights; a toy where small."
        torch.manual_seed(SEED)
        tokenizer = load_tokenizer('chess' if self.small else 'gpt2')
        shape = PRESETS['tiny' if self.small else 'gpt2']
        return GPT(replace(shape, vocab_size=tokenizer.vocab_size, n_positions=n_positions if self.small else shape.n_positions)).to(self.device).eval(), tokenizer

    def timed(self, work):
        "Seconds of the work, and what it returns; a GPU has finished it."
        if self.gpu: torch.cuda.synchronize()
        began, found = time.perf_counter(), work()
        if self.gpu: torch.cuda.synchronize()
        return time.perf_counter() - began, found

    def peak(self):
        "GB at most since the last question, on a GPU; what the process holds, on a CPU."
        if not self.gpu: return process_memory_gb()
        gb = torch.cuda.max_memory_allocated()/1e9
        torch.cuda.reset_peak_memory_stats()
        return gb

    def arms(self, compiled=True):
        "Name of a way to sample: dtype, fixed shapes, backend of torch.compile."
        ways = {'tree float32': ('float32', False, None), 'tree bfloat16': ('bfloat16', False, None), 'fixed float32': ('float32', True, None), 'fixed bfloat16': ('bfloat16', True, None)}
        return ways if not compiled else ways | {'compiled bfloat16': ('bfloat16', True, 'inductor' if self.gpu else 'eager')}


def examples_of(n): return load_rows('positions', 0.5, SEED, 'train', 4*n)[:n]


def config_of(day, P, G, **choices):
    return TrainConfig(**dict(data='positions', kl_coef=0.6, prompts_per_step=P, group_size=G, max_new_tokens=day.tokens, temperature=1.0, max_refills=0, dynamic_sampling=False, mask_truncated=False, learning_rate=1e-5,
                              env_ratio=0.5, reward_source='auto', kl_every=0, seed=SEED, device=day.device, micro_batch_size=P*G) | choices)


def their_model(day, ours, dtype=torch.float32):
    "The same weights in `transformers`; None where it is not installed."
    try: from transformers import GPT2LMHeadModel
    except ImportError: return None
    folder = day.out/'model'
    if not (folder/'config.json').exists(): save_model(*ours, folder)
    return GPT2LMHeadModel.from_pretrained(folder).to(day.device, dtype).eval()


def their_samples(day, theirs, ids, mask, G):
    with torch.no_grad():
        return theirs.generate(input_ids=ids, attention_mask=mask.long(), do_sample=True, top_k=0, temperature=1.0, num_return_sequences=G, max_new_tokens=day.tokens, min_new_tokens=day.tokens, pad_token_id=0)


@piece
def rollouts(day):
    "Sampled tokens a second; every round runs every way once, so that a slow minute hurts all alike."
    model, tokenizer = day.large()
    theirs = their_model(day, (model, tokenizer), torch.bfloat16)
    for P, G in day.shapes:
        texts = [e.prompt(tokenizer.style) for e in examples_of(P)]
        for n in range(day.rounds + 1):                                        # the first round warms up
            for arm, (dtype, fixed, _) in day.arms(compiled=False).items():
                device.set_numbers(model, dtype, fixed)
                for ids in [None, tokenizer.answer_ids] if 'bfloat16' in arm else [None]:
                    spent, r = day.timed(lambda: generate(model, tokenizer, texts, G, day.tokens, seed=n, vocabulary=ids))
                    done = int(r.completion_mask.sum())
                    day.add(round=n, rows=P*G, arm=arm + ' task head'*(ids is not None), tokens=done, seconds=spent, tokens_per_s=done/spent, peak_gb=day.peak())
                    if day.late(): return
            if theirs:
                spent, _ = day.timed(lambda: their_samples(day, theirs, r.prompt_ids, r.prompt_mask, G))
                day.add(round=n, rows=P*G, arm='transformers bfloat16', tokens=P*G*day.tokens, seconds=spent, tokens_per_s=P*G*day.tokens/spent, peak_gb=day.peak())
    best = pd.DataFrame(day.rows).query('round > 0').groupby(['rows', 'arm']).tokens_per_s.median()
    return {f'{rows} rows, {arm}': round(x) for (rows, arm), x in best.items()}


def plain_step(day, theirs, optimizer, examples, tokenizer, scorer, G):
    "A correct GRPO step with nothing but `transformers`."
    from rookworld_nb.lm.tokenizer import pad_batch
    ids, mask = pad_batch([tokenizer.encode(e.prompt(tokenizer.style)) for e in examples], device=day.device)
    full = their_samples(day, theirs, ids, mask, G)
    T = full.shape[1] - ids.shape[1]
    texts = [tokenizer.decode(row) for row in full[:, -T:].tolist()]
    rewards = torch.tensor([s.total for s in scorer.score(examples, texts, 1)]).view(-1, G)
    seen = torch.cat([mask.repeat_interleave(G, 0), mask.new_ones(len(full), T)], 1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    optimizer.zero_grad()
    with torch.autocast(day.device, torch.bfloat16) if day.gpu else nullcontext():
        logits = theirs(input_ids=full, attention_mask=seen.long(), position_ids=positions).logits[:, -T - 1:-1]
    now = token_logprobs(logits, full[:, -T:])
    loss, _ = policy_loss(now, now.detach(), group_advantages(rewards).flatten().to(day.device), torch.ones_like(now, dtype=torch.bool), 'dr_grpo', max_length=T)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    optimizer.step()


def trl_step_seconds(day, theirs, examples, tokenizer, P, G, steps):
    "Seconds of TRL's own steps on the same prompts; a word is a token, so that its tokenizer costs nothing. None where TRL is not installed."
    try:
        from datasets import Dataset
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer
        from rookworld_nb.apps.bridges import right_positions
    except Exception: return None
    words = Tokenizer(models.WordLevel({str(i): i for i in range(theirs.config.vocab_size)}, unk_token='0'))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token='0', pad_token='0', unk_token='0')
    rows, times = [' '.join(map(str, tokenizer.encode(e.prompt(tokenizer.style)))) for e in examples], []
    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__): times.append(time.perf_counter())
    args = GRPOConfig(output_dir=str(day.out/'trl'), per_device_train_batch_size=P*G, num_generations=G, max_completion_length=day.tokens, max_steps=steps + 1, report_to=[], save_strategy='no',
                      beta=0.0, temperature=1.0, top_k=0, loss_type='dr_grpo', scale_rewards='group', disable_dropout=True, use_cpu=not day.gpu, bf16=day.gpu, gradient_checkpointing=False, disable_tqdm=True, seed=SEED, logging_strategy='no')
    trainer = GRPOTrainer(right_positions(theirs), [lambda completions, **_: [float(len(c) % 7) for c in completions]], args, train_dataset=Dataset.from_dict(dict(prompt=rows*4)), processing_class=fast, callbacks=[Clock()])
    trainer.train()
    return [b - a for a, b in zip(times, times[1:])]


@piece
def steps(day):
    "Seconds of a whole step: ours, the plain loop on transformers, TRL."
    for P, G in day.shapes:
        examples = examples_of(P)
        (model, tokenizer), arms = day.large(), [('float32', False), ('bfloat16', False), ('bfloat16', True)] if day.gpu else [('float32', False), ('float32', True)]
        theirs, scorer = their_model(day, (model, tokenizer)), make_scorer(config_of(day, P, G))
        ours = {f'ours {dtype}' + ' compile'*fixed: Learner(day.large()[0], tokenizer, config_of(day, P, G, dtype=dtype, compile=fixed, vocabulary='task')) for dtype, fixed in arms}
        optimizer = theirs and torch.optim.AdamW(theirs.parameters(), 1e-5)
        for n in range(1, day.rounds + 2):
            for arm, learner in ours.items():
                source = PromptSource(load_rows('positions', 0.5, SEED, 'train', 4*P), SEED)
                device.set_numbers(learner.model, learner.config.dtype, learner.config.compile)   # float32 or TF32 is one setting of the process
                spent, (row, _) = day.timed(lambda: train_step(learner, source, n))
                day.add(arm=arm, prompts=P, group_size=G, round=n, seconds=spent, peak_gb=day.peak(), **{k: row[k] for k in ('time_rollout_s', 'time_score_s', 'time_update_s', 'sampling_gap_nats', 'completion_tokens')})
                if day.late(): return
            if theirs:
                spent, _ = day.timed(lambda: plain_step(day, theirs, optimizer, examples, tokenizer, scorer, G))
                day.add(arm='plain transformers', prompts=P, group_size=G, round=n, seconds=spent, peak_gb=day.peak())
        del ours, optimizer
        for n, spent in enumerate((theirs and trl_step_seconds(day, theirs, examples, tokenizer, P, G, day.rounds)) or (), 2):
            day.add(arm='TRL', prompts=P, group_size=G, round=n, seconds=spent, peak_gb=day.peak())
    best = pd.DataFrame(day.rows).query('round > 1').groupby(['prompts', 'group_size', 'arm']).seconds.median()
    return {f'{P}x{G}, {arm}': round(x, 4) for (P, G, arm), x in best.items()}


@piece
def identity(day):
    "Scoring against sampling before any update, in every way to compute; on nano and on the large shape."
    within = True
    for name, (model, tokenizer) in dict(nano=load_model('nano', day.device), large=day.large()).items():
        P, G = day.shapes[0]
        texts, exact = [e.prompt(tokenizer.style) for e in examples_of(P)], None
        for arm, (dtype, fixed, backend) in day.arms().items():
            numbers = device.set_numbers(model, dtype, fixed)
            with patch.object(device, '_BACKEND', backend), torch.no_grad():
                try: r = generate(model, tokenizer, texts, G, day.tokens, seed=SEED)
                except torch._inductor.exc.InductorError as e:      # of torch itself: on an H100, torch 2.11 could compile nano and not the large shape
                    day.add(model=name, arm=arm, failed=str(e).splitlines()[0])
                    continue
                far = (token_logprobs(sampling_logits(completion_logits(model, r), r), r.places) - r.logprobs)[r.completion_mask].abs()
            exact = r if exact is None else exact
            same = sum(a == b for a, b in zip(r.completions, exact.completions))/len(r.completions)
            within &= far.max().item() <= numbers.identity
            day.add(model=name, arm=arm, tokens=len(far), gap_max=far.max().item(), gap_mean=far.mean().item(), tolerance=numbers.identity, same_as_tree_float32=same)
    return dict(within=bool(within), largest=max(r['gap_max'] for r in day.rows if 'gap_max' in r))


@piece
def memory(day):
    "Many steps of nano: memory stays flat. On a GPU also an out-of-memory error for real, at a limit that the batch does not fit into."
    N, (P, G) = (8, (2, 2)) if day.small else (500, (8, 8))
    model, tokenizer = load_model('nano', day.device)
    choices = dict(dtype='bfloat16', compile=True, kl_every=0)
    learner, source = Learner(model, tokenizer, config_of(day, P, G, **choices)), PromptSource(load_rows('positions', 0.5, SEED, 'train', 4000), SEED)
    for n in range(1, N + 1):
        row, _ = train_step(learner, source, n)
        day.add(step=n, allocated_gb=torch.cuda.memory_allocated()/1e9 if day.gpu else process_memory_gb(), seconds=row['time_s'], gap=row['sampling_gap_nats'], reward=row['reward_mean'])
        if day.late(): return
    held = pd.DataFrame(day.rows).allocated_gb
    first, last = held[N//5:2*N//5 + 1].max(), held[4*N//5:].max()
    return dict(steps=N, growth=round(last/first, 4), flat=bool(last <= 1.05*first), **recovered(day))


def recovered(day):
    "A step whose whole batch does not fit: the micro-batch is halved, and the step is made."
    model, tokenizer = day.large()
    P, G = day.shapes[1]
    learner = Learner(model, tokenizer, config_of(day, P, G, micro_batch_size=P*G))
    rows = load_rows('positions', 0.5, SEED, 'train', 4*P)
    work, least = learning.backward_pass, G if day.small else 4*G
    def tight(learner, part, *more):      # on a GPU: memory is really taken until none is left
        if len(part.completion_ids) <= least: return work(learner, part, *more)
        if not day.gpu: raise torch.OutOfMemoryError('out of memory, for the rehearsal')
        taken = []
        while True: taken.append(torch.empty(2**30, dtype=torch.uint8, device='cuda'))
    with patch.object(learning, 'backward_pass', tight): row, _ = train_step(learner, PromptSource(rows, SEED), 1)
    return dict(micro_batch_size=learner.micro_batch_size, of=P*G, recovered=bool(math.isfinite(row['loss'])))


@piece
def resume(day):
    "A run, and the same run stopped in the middle and resumed: the same metrics."
    P, G = day.shapes[0]
    config = config_of(day, P, G, max_steps=4, save_every=2, eval_prompts=2, warmup_steps=1, check_every=0, dtype='bfloat16', compile=True)
    def losses(run): return [(r['reward_mean'], r['entropy_nats'], r['grad_norm']) for r in map(json.loads, (run/'metrics.jsonl').read_text().splitlines())]
    whole, half = (day.out/f'{name}-{time.time_ns()}' for name in ('whole', 'half'))
    train(replace(config, output_dir=str(whole)))
    from rookworld_nb.run import train as training
    step = training._step
    def stopped(running, n):
        if n == 4: raise KeyboardInterrupt
        return step(running, n)
    with patch.object(training, '_step', stopped):
        try: train(replace(config, output_dir=str(half)))
        except KeyboardInterrupt: pass
    train(replace(config, output_dir=str(half)), resume=half)
    for n, (a, b) in enumerate(zip(losses(whole), losses(half)), 1): day.add(step=n, difference=max(abs(x - y) for x, y in zip(a, b)))
    return dict(steps=len(day.rows), difference=max(r['difference'] for r in day.rows))


def main(args=None):
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--out', required=True, help='directory of the results')
    parser.add_argument('--piece', nargs='+', default=['all'], choices=['all', *PIECES], help='what to do')
    parser.add_argument('--small', action='store_true', help='toy sizes, for a rehearsal on a CPU')
    parser.add_argument('--minutes', type=float, default=9.0, help='after which a piece stops')
    given = parser.parse_args(args)
    day = Day(given.out, given.small, given.minutes)
    for name in PIECES if 'all' in given.piece else given.piece:
        file = day.out/f'{name}.json'
        if file.exists() and json.loads(file.read_text())['finished']: print(f'{name}: finished already')
        else: day.do(name)


if __name__ == '__main__': main()
