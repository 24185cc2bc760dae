"""How long does a step of GRPO take: a plain loop on transformers, TRL, and this package, on the same work?

    python speed.py --threads 2 --repeats 3 --before DIR   # DIR: a checkout of the commit to compare with; its own speed.py runs
    python speed.py --check                                # are the gradients those of the plain loop?

Every measurement is a process of its own, so that peaks of memory are its own; the methods take turns. One row per
measurement goes to speed.csv. Without `trl` that method is left out."""
import argparse
import csv
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

SHAPES = dict(small=(4, 256), gpt2=(12, 768), nano=(4, 192))   # layers, width; GPT-2's vocabulary but for nano
HEAT = dict(small=1.0, gpt2=1.0, nano=0.7)
STEPS = dict(small=1, gpt2=1, nano=8)   # measured, after one that is not; a step of nano is short
NANO = Path(__file__).resolve().parents[3]/'rookworld_nb/assets/nano'   # the weights of this commit, also for "ours before"
COLUMNS = 'part,method,prompts,group,tokens,repeat,sampling_s,update_s,step_s,cpu_s,held_gb,peak_gb,sampled_tokens'.split(',')


def memory():
    "GB that this process holds, and held at most."
    status = dict(l.split(':') for l in Path('/proc/self/status').read_text().splitlines())
    return [int(status[k].split()[0])/1e6 for k in ('VmRSS', 'VmHWM')]


def questions(prompts):
    from rookworld_nb.chess.dataset import load_rows
    rows = load_rows('positions', env_ratio=0.5, split='train', limit=400)[:]
    return [e for kind in 'PA' for e in [r for r in rows if r.kind == kind][:(prompts + (kind == 'P'))//2]]


def shaped(part, T=60):
    "Model and tokenizer of a part, the same weights every time; room for longer texts where answers are long."
    import torch
    from rookworld_nb.lm.loader import load_model
    from rookworld_nb.lm.model import GPT, GPTConfig
    from rookworld_nb.lm.tokenizer import load_tokenizer
    if part == 'nano': return load_model(str(NANO))
    layers, width = SHAPES[part]
    torch.manual_seed(0)
    return GPT(GPTConfig(50257, 512 if T <= 240 else 1024, layers, width//64, width)).eval(), load_tokenizer('gpt2')


def as_transformers(part, model, tokenizer, place):
    "The same weights as `transformers` opens them."
    from transformers import GPT2LMHeadModel, logging
    from rookworld_nb.lm.loader import save_model
    logging.disable_progress_bar()
    save_model(model, tokenizer, place)
    return GPT2LMHeadModel.from_pretrained(place)


def rewards_of(part, examples, completions, G):
    "Of the rules and the rows for nano; else numbers drawn by a seed, since random weights write no answer."
    import torch
    from rookworld_nb.reward.scoring import Scorer
    if part == 'nano': return torch.tensor([s.total for s in Scorer().score(examples, completions)]).view(-1, G)
    return torch.rand(len(examples), G, generator=torch.Generator().manual_seed(0))


def same_work(part, P, G, T, vocabulary='full', micro=64):
    "The configuration that does what the plain loop does: its loss, and no second model."
    from rookworld_nb.config import TrainConfig
    fewer = {} if vocabulary == 'full' else dict(vocabulary=vocabulary)    # an old commit has neither this field nor the next
    if 'coherence_share' in TrainConfig.__dataclass_fields__: fewer['coherence_share'] = 0.
    return TrainConfig(data='positions', prompts_per_step=P, group_size=G, max_new_tokens=T, temperature=HEAT[part], kl_coef=0., kl_every=0, loss_type='dapo', mask_truncated=False, micro_batch_size=micro, reward_source='auto', device='cpu', **fewer)


def of_steps(times, held):
    "Medians of what was measured step by step: sampling, update, CPU, sampled tokens."
    *seconds, tokens = map(statistics.median, zip(*times))
    return *seconds, held, int(tokens)


def ours(part, P, G, T, vocabulary='full', micro=64):
    "Steps of the package, the first not measured. The parts that a step is made of, as `train_step` calls them."
    from rookworld_nb.grpo.experience import collect
    from rookworld_nb.grpo.step import Learner, make_targets, update
    with suppress(ImportError):    # as a run does; an old commit has no such function
        from rookworld_nb.run.memory import keep_memory
        keep_memory()
    model, tokenizer = shaped(part, T)
    learner, examples = Learner(model, tokenizer, same_work(part, P, G, T, vocabulary, micro)), questions(P)
    config, times = learner.config, []
    for step in range(1, STEPS[part] + 2):
        if step == 2: held, _ = memory()
        cpu, t0 = time.process_time(), time.perf_counter()
        batch, _ = collect(model, tokenizer, examples, config, step)
        if part != 'nano': batch.rewards = rewards_of(part, examples, None, G)
        t1 = time.perf_counter()
        update(learner, batch, make_targets(learner, batch, 2)[0], 2)
        times.append((t1 - t0, time.perf_counter() - t1, time.process_time() - cpu, int(batch.rollouts.completion_mask.sum())))
    return of_steps(times[1:], held)


def add_gradient(model, tokens, mask, alive, A, heat, micro, ids=None):
    "Of the clipped loss, a mean over tokens, in micro-batches; ids: the only ones that could be drawn."
    import torch
    T, full = alive.shape[1], torch.cat([mask, alive.long()], 1)
    made, position = tokens[:, -T:], (full.cumsum(1) - 1).clamp(min=0)
    for i in range(0, len(tokens), micro):
        at = slice(i, i + micro)
        z = model(tokens[at], attention_mask=full[at], position_ids=position[at], logits_to_keep=T + 1).logits[:, :-1]/heat
        if ids is not None: z = z + torch.full((z.shape[-1],), -torch.inf).index_fill(0, ids, 0)
        logp = z.log_softmax(-1).gather(-1, made[at, :, None])[..., 0]
        ratio = (logp - logp.detach()).exp()
        loss = -torch.minimum(ratio*A[at], ratio.clamp(0.8, 1.28)*A[at]).where(alive[at], 0)
        (loss.sum()/alive.sum()).backward()


def check(part, P=2, G=4, T=60):
    "Gradients of both on the same samples: the largest difference, as a share of the largest entry, for each vocabulary."
    import tempfile
    import torch
    from rookworld_nb.grpo.experience import collect
    from rookworld_nb.grpo.step import Learner, _gradient, make_targets
    model, tokenizer = shaped(part)
    with tempfile.TemporaryDirectory() as place: net = as_transformers(part, model, tokenizer, place).eval()
    for vocabulary in ('full', 'task'):
        learner = Learner(model, tokenizer, same_work(part, P, G, T, vocabulary))
        batch, _ = collect(model, tokenizer, questions(P), learner.config, 1)
        batch.rewards, r = rewards_of('drawn', batch.examples, None, G), batch.rollouts
        targets, _ = make_targets(learner, batch, 2)
        _gradient(learner, r, targets)
        net.zero_grad()
        prompts, mask = (x.repeat_interleave(G, 0) for x in (r.prompt_ids, r.prompt_mask.long()))
        add_gradient(net, torch.cat([prompts, r.completion_ids], 1), mask, r.completion_mask, targets.advantages[:, None], HEAT[part], 16, r.vocabulary)
        theirs = {name: net.get_parameter(f'transformer.{name}').grad for name, _ in model.named_parameters()}
        pairs = [(p.grad, g.T if p.ndim == 2 and name.startswith('h.') else g) for (name, p), g in zip(model.named_parameters(), theirs.values())]
        yield part, vocabulary, max((a - b).abs().max().item() for a, b in pairs)/max(b.abs().max().item() for _, b in pairs)


def plain(part, P, G, T, micro=16):
    "The loop that one writes first, correct: `generate` with a cache, then a clipped loss with masks, in micro-batches."
    import tempfile
    import torch
    model, tokenizer = shaped(part)
    with tempfile.TemporaryDirectory() as place: model = as_transformers(part, model, tokenizer, place).eval()
    optimizer, examples = torch.optim.AdamW(model.parameters(), 1e-6), questions(P)
    prompts, end, heat = [tokenizer.encode(e.prompt(tokenizer.style)) for e in examples], tokenizer.eot, HEAT[part]
    W = max(map(len, prompts))
    ids = torch.tensor([[end]*(W - len(p)) + p for p in prompts]).repeat_interleave(G, 0)
    mask = torch.tensor([[0]*(W - len(p)) + [1]*len(p) for p in prompts]).repeat_interleave(G, 0)
    most = min(T, model.config.n_positions - W)
    stop = dict(eos_token_id=end) if part == 'nano' else dict(min_new_tokens=T, eos_token_id=end)
    times = []
    for step in range(1, STEPS[part] + 2):
        if step == 2: held, _ = memory()
        cpu, t0 = time.process_time(), time.perf_counter()
        torch.manual_seed(step)
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, do_sample=True, temperature=heat, top_k=0, max_new_tokens=most, pad_token_id=end, **stop)
        made = out[:, W:]
        alive = ((made == end).cumsum(1) - (made == end).long() == 0) if part == 'nano' else torch.ones_like(made, dtype=torch.bool)
        texts = [tokenizer.decode([i for i, a in zip(row.tolist(), ok.tolist()) if a and i != end]) for row, ok in zip(made, alive)]
        R = rewards_of(part, examples, texts, G)
        t1 = time.perf_counter()
        A = ((R - R.mean(1, keepdim=True))/(R.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        optimizer.zero_grad()
        add_gradient(model, torch.cat([ids, made], 1), mask, alive, A, heat, micro)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append((t1 - t0, time.perf_counter() - t1, time.process_time() - cpu, int(alive.sum())))
    return of_steps(times[1:], held)


def trl(part, P, G, T):
    "Steps of TRL's GRPOTrainer, the first two not measured. Its choices that change the work are written out: the loss and the advantages of `same_work`. Its model has the right positions (see the page of the bridges)."
    import tempfile
    import torch
    import warnings
    import transformers
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from rookworld_nb.apps.bridges import prompt_dataset, reward_funcs, right_positions, transformers_tokenizer
    warnings.simplefilter('ignore')
    transformers.logging.set_verbosity_error()
    model, tokenizer = shaped(part)
    marks = []
    class Clock(TrainerCallback):
        def on_step_begin(self, *a, **k): marks.append((time.perf_counter(), time.process_time()))
        def on_step_end(self, *a, **k): marks.append((time.perf_counter(), time.process_time()))
    def drawn(completions, **_): return torch.rand(len(completions), generator=torch.Generator().manual_seed(0)).tolist()
    with tempfile.TemporaryDirectory() as place:
        net, words = right_positions(as_transformers(part, model, tokenizer, place)), transformers_tokenizer(tokenizer)
        config = GRPOConfig(output_dir=place, max_steps=STEPS[part] + 2, per_device_train_batch_size=min(16, P*G), gradient_accumulation_steps=max(1, P*G//16), num_generations=G, max_completion_length=T,
                            temperature=HEAT[part], top_k=0, beta=0.0, loss_type='dapo', scale_rewards='group', epsilon=0.2, epsilon_high=0.28, mask_truncated_completions=False, disable_dropout=True, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], logging_strategy='no', save_strategy='no',
                            disable_tqdm=True, dataloader_num_workers=0, learning_rate=1e-6,
                            generation_kwargs={} if part == 'nano' else dict(min_new_tokens=T))
        trainer = GRPOTrainer(net, reward_funcs() if part == 'nano' else drawn, config, train_dataset=prompt_dataset(questions(P)),
                              processing_class=words, callbacks=[Clock()])
        held, _ = memory()
        trainer.train()
    begun, ended = marks[4::2], marks[5::2]
    step, cpu = (statistics.median(b[i] - a[i] for a, b in zip(begun, ended)) for i in (0, 1))
    return float('nan'), float('nan'), cpu, held, float('nan'), step


def two_processes(part, P, G, T):
    "The same step of two processes with a thread each, which torchrun starts: what rank 0 measured, the CPU-seconds and the memory its own."
    words = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', __file__, '--threads', '1',
             '--one', part, 'ours' if part == 'nano' else 'ours, task head', *map(str, (P, G, T, 0))]
    said = subprocess.run(words, env=os.environ | dict(OMP_NUM_THREADS='1'), stdout=subprocess.PIPE, text=True, check=True).stdout
    (row,) = csv.reader([line for line in said.splitlines() if line.startswith(f'{part},')])
    sampling, update, _, cpu, held, _, tokens = row[6:]
    return float(sampling), float(update), float(cpu), float(held), int(tokens)


METHODS = {'plain loop': plain, 'TRL': trl, 'ours': ours, 'ours, task head': lambda *a: ours(*a, vocabulary='task'), 'two processes': two_processes,
           **{f'task head, {n} at a time': (lambda *a, n=n: ours(*a, vocabulary='task', micro=n)) for n in (32, 16)}}


def measure(part, method, P, G, T, repeat, threads):
    "In this process: one row."
    import torch
    torch.set_num_threads(threads)
    ranks = nullcontext()
    if 'RANK' in os.environ:   # an old commit has no such room
        from rookworld_nb.grpo.ranks import joined
        ranks = joined()
    with ranks: sampling, update, cpu, held, tokens, *step = METHODS[method](part, P, G, T)
    seconds = step[0] if step else sampling + update
    peak = float('nan') if method == 'two processes' else memory()[1]
    return [part, method, P, G, T, repeat, *(round(x, 4) for x in (sampling, update, seconds, cpu, held, peak)), tokens]


def plan(quick, growth_only, before, repeat):
    "Part, method, prompts, group, tokens; the methods take turns. Memory is measured in the first repeat only."
    methods = [m for m in METHODS if 'at a time' not in m and (m != 'TRL' or importlib.util.find_spec('trl'))] + ['ours before']*bool(before)
    jobs = [('small', m, 8, 8, 60) for m in methods] + [('gpt2', m, 2, 4, 60) for m in methods if m != 'two processes'] + [('nano', m, 8, 8, 144) for m in methods if m != 'ours, task head']
    growth = [('small', 'ours, task head', *n) for n in [(8, 8, 60), (2, 8, 60), (4, 8, 60), (16, 8, 60), (32, 8, 60), (64, 8, 60), (8, 2, 60), (8, 4, 60), (8, 16, 60), (8, 32, 60), (8, 64, 60), (8, 8, 15), (8, 8, 30), (8, 8, 120), (8, 8, 240), (8, 8, 512), (64, 64, 60)]]
    memory = [('gpt2', m, 8, 8, 60) for m in ('ours', 'ours, task head', 'task head, 32 at a time', 'task head, 16 at a time')]
    if quick: return [('small', m, 2, 8, 6) for m in methods]
    return growth if growth_only else jobs + (memory if repeat == 0 else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--output', type=Path, default=Path(__file__).parent/'speed.csv')
    parser.add_argument('--quick', action='store_true', help='two prompts of six tokens, to see that everything runs')
    parser.add_argument('--parts', nargs='+', choices=list(SHAPES), default=list(SHAPES), help='only these models')
    parser.add_argument('--growth', action='store_true', help='only how the cost grows with prompts, group and tokens')
    parser.add_argument('--before', type=Path, help='a checkout of the commit to compare with, 25a7301 or later: its own speed.py measures "ours before"')
    parser.add_argument('--check', action='store_true', help='compare the gradients, and no times')
    parser.add_argument('--one', nargs=6, help=argparse.SUPPRESS)   # part method prompts group tokens repeat
    a = parser.parse_args()
    if a.check:
        for part in ('nano', 'small'):
            for told in check(part): print(*told)
        return
    if a.one:
        part, method, *numbers = a.one
        row = measure(part, method, *map(int, numbers), a.threads)
        return csv.writer(sys.stdout, lineterminator='\n').writerow(row) if os.environ.get('RANK', '0') == '0' else None
    done = {tuple(row[:6]) for row in csv.reader(a.output.open())} if a.output.exists() else set()
    if not done: a.output.write_text(','.join(COLUMNS) + '\n')
    for repeat in range(a.repeats):
        jobs = [j for j in plan(a.quick, a.growth, a.before, repeat) if j[0] in a.parts]
        for job in jobs if repeat % 2 == 0 else jobs[::-1]:
            words = [*map(str, job), str(repeat)]
            if tuple(words) in done: continue
            script, package, one = __file__, {}, words
            if job[1] == 'ours before':   # the work is the same, the names in that package are not
                (script,), package, one = a.before.rglob('speed.py'), dict(PYTHONPATH=str(a.before)), [words[0], 'ours', *words[2:]]
            child = subprocess.run([sys.executable, str(script), '--threads', str(a.threads), '--one', *one], env=os.environ | dict(OMP_NUM_THREADS=str(a.threads)) | package,
                                   stdout=subprocess.PIPE, text=True, check=True)
            row = child.stdout.splitlines()[-1]
            if job[1] == 'ours before': row = row.replace(',ours,', ',ours before,', 1)
            with a.output.open('a') as f: f.write(row + '\n')
            print(row, flush=True)


if __name__ == '__main__': main()
