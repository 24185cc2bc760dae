"""The head, a few rows at a time: the numbers of a plain loop over whole logits, of all ids or of
those of a task; the same policy in sampling and loss; and nothing of the size of all logits in
memory."""
import random
import re
from dataclasses import replace
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.tasks import REWARDS
from rookworld_nb.grpo import head, step as learning
from rookworld_nb.grpo.experience import collect
from rookworld_nb.grpo.step import Learner, Targets, backward_pass
from rookworld_nb.fast.generate import _unpack_bits, completion_logits
from rookworld_nb.lm.loader import load_model
from rookworld_nb.lm.model import GPT, PRESETS
from rookworld_nb.lm.tokenizer import load_tokenizer
from rookworld_nb.measure.evaluate import judge_rows
from test_config_wiring import CONFIG, ROWS, made, updated

GPT2 = load_tokenizer('gpt2')
# two completions teach nothing
ADVANTAGES = torch.tensor([0.5, -1, 0, 2, 0, 0.3, -0.7, 1], dtype=torch.float64)


def plain_loss(model, reference, r, config, advantages):
    "One completion at a time over whole logits; ids that cannot be drawn have a logit near -inf."
    total, tokens, V = 0, r.completion_mask.sum(), model.config.vocab_size
    for i, ids in enumerate(r.completion_ids):
        p, n = i // r.group_size, int(r.completion_mask[i].sum())
        prompt, can = r.prompt_ids[p][r.prompt_mask[p]], torch.ones(n, V, dtype=torch.bool)
        if r.vocabulary is not None:
            can = torch.zeros(n, V, dtype=torch.bool).index_fill(1, r.vocabulary, True)
        if r.kept is not None:
            can[can.clone()] = _unpack_bits(r.kept[i, :n], int(can[0].sum())).flatten()
        def logp(m):
            z = m(torch.cat([prompt, ids[:n]])[None])[0, len(prompt)-1:-1] / r.temperature[p]
            return z.masked_fill(~can, -1e30).log_softmax(-1)
        logpi, logref = logp(model), logp(reference).detach()
        pi, ref = logpi.exp(), logref.exp()
        to_ref, from_ref = (pi * (logpi - logref)).sum(-1), (ref * (logref - logpi)).sum(-1)
        kl = dict(kl_pi_ref=to_ref, kl_ref_pi=from_ref,
                  symmetric=(to_ref + from_ref)/2)[config.kl_type]
        H, lp = -(pi * logpi).sum(-1), logpi[range(n), ids[:n]]
        ratio = (lp - r.logprobs[i, :n]).exp()
        objective = torch.minimum(ratio*advantages[i], ratio.clamp(0.8, 1.28)*advantages[i])
        total = total + (-objective + config.kl_coef*kl - config.entropy_coef*H).sum()
    return total / tokens


@pytest.mark.parametrize('chunk', [20_000, 10**9])      # logits: 6 tokens, or all
@pytest.mark.parametrize('vocabulary', ['full', 'task'])
@pytest.mark.parametrize('kl_type,how', [('kl_pi_ref', dict(top_k=40)), ('kl_ref_pi', dict(top_p=0.95)), ('symmetric', {})])
def test_value_and_gradient_of_the_plain_loop(chunk, vocabulary, kl_type, how, monkeypatch):
    monkeypatch.setattr(head, 'CHUNK', chunk)
    learner, batch = made(vocabulary=vocabulary, kl_type=kl_type, kl_coef=0.3, entropy_coef=0.2,
                          loss_type='dapo', temperature=0.7, env_temperature=1.3, **how)
    model, r = learner.model.double(), batch.rollouts
    reference = learner.reference.double()
    with torch.no_grad(): reference.wte.weight.mul_(1.05)
    r = replace(
        r, logprobs=(
            r.logprobs +
            0.5*torch.randn(r.logprobs.shape, generator=torch.Generator().manual_seed(1)).double())*
        r.completion_mask)
    sums = backward_pass(learner, r, Targets(ADVANTAGES, learner.config.kl_coef),
                         float(r.completion_mask.sum()), 54)
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    loss = plain_loss(model, reference, r, learner.config, ADVANTAGES)
    loss.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert sums.clipped_low and sums.clipped_high and sums.tokens == 54
    assert sums.loss == pytest.approx(loss.item(), rel=1e-12)
    assert (ours - theirs).norm() < 1e-10*theirs.norm()


def test_sampling_and_scoring_see_the_same_ids():
    "The identity before any update; and a step that forgets the ids in the loss stops."
    learner, batch = made(vocabulary='task', top_k=20)
    assert torch.isin(batch.rollouts.completion_ids, learner.tokenizer.answer_ids).all()
    assert updated(learner, batch).sampling_gap_nats < 1e-5
    learner, batch = made(vocabulary='task', temperature=1.5)
    batch.rollouts = replace(batch.rollouts, vocabulary=None)
    with pytest.raises(RuntimeError, match='scoring differs from sampling'): updated(learner, batch)


def test_the_kl_to_the_start_is_that_of_the_restricted_policies():
    learner, batch = made(vocabulary='task', kl_coef=0.1)
    with torch.no_grad(): learner.reference.wte.weight.mul_(1.3)
    r, ids = batch.rollouts, learner.tokenizer.answer_ids
    measured = updated(made(vocabulary='task', kl_coef=0.1)[0], batch).kl_nats_per_token
    # a fresh reference is the policy
    assert measured == 0
    with torch.no_grad():
        p, q = ((head.completion_hidden(m, r) @ m.wte.weight[ids].T/0.3).double().log_softmax(-1)
                for m in (learner.model, learner.reference))
    by_hand = (p.exp() * (p - q)).sum(-1)[r.completion_mask].mean().item()
    assert updated(learner, batch).kl_nats_per_token == pytest.approx(by_hand,
                                                                      rel=1e-3) and by_hand > 0.01


class Largest(TorchDispatchMode):
    "Remembers the most numbers that a tensor had which was made inside a `with` block."
    numbers = 0
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        out = f(*args, **kwargs or {})
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize('vocabulary', ['full', 'task'])
def test_logits_never_stand_in_memory(vocabulary, monkeypatch):
    """Sampling, reference, KL in the reward or in the loss, value head, distance and backward pass:
    no tensor larger than the embedding and a chunk."""
    torch.manual_seed(0)
    model = GPT(replace(PRESETS['tiny'], vocab_size=GPT2.vocab_size, n_positions=192,
                        n_embd=8)).eval()
    monkeypatch.setattr(head, 'CHUNK', 700_000)       # a row is 12 * 50,257 = 603,084
    most = dict(full=700_000, task=model.wte.weight.numel())[vocabulary]
    examples = [next(r for r in ROWS if r.kind == kind) for kind in 'PA']
    for how in (dict(kl_coef=0.1, kl_in='reward', baseline='value', advantage_scale='batch'),
                dict(kl_coef=0.1, entropy_coef=0.1, kl_type='symmetric'), dict(kl_every=1)):
        config = replace(CONFIG, vocabulary=vocabulary, temperature=0.9, **how)
        learner = Learner(model, GPT2, config)
        with Largest() as sampling: batch, _ = collect(model, GPT2, examples, config, 3)
        with Largest() as learned:
            updated(learner, batch)
            if learner.start: learning._distance(learner, batch.rollouts)
        assert 0 < learned.numbers <= most < 8*12*50257
        # one column of the samples, in float64
        assert sampling.numbers <= (2*8*50257 if vocabulary == 'full' else most)
    r = batch.rollouts
    with Largest() as usual:
        completion_logits(model, r).log_softmax(-1).gather(-1, r.places[..., None]).sum().backward()
    assert vocabulary == 'task' or usual.numbers == 8*12*50257      # all logits at once


def test_a_trained_model_says_the_same():
    "Greedily, nano has no use for the other ids."
    model, tokenizer = load_model('nano')
    rows = load_rows('positions', 0.5, 0, 'eval', 16)[:]
    free, held = (judge_rows(model, tokenizer, rows, vocabulary=ids, limits=dict(P=30, A=60))
                  for ids in (None, tokenizer.answer_ids))
    assert free.completion.tolist() == held.completion.tolist()


# ---- the ids of a task

def random_answers(n, seed=0):
    """Answers, most of them wrong, but written as answers are: nonsense ranks (of at most three
    digits side by side), any castling right, any move, numbers up to 999."""
    rng = random.Random(seed)
    def square(): return rng.choice('abcdefgh') + rng.choice('12345678')
    def move(): return square() + square() + rng.choice(['', '', 'q', 'r', 'b', 'n'])
    def number(): return rng.choice([str(rng.randrange(1000)), str(rng.randrange(10))])

    def pawns():
        return (rng.choice(['', '-']) + number() + '.' +
                rng.choice([str(rng.randrange(10)), f'{rng.randrange(100):02}']))
    for _ in range(n):
        ranks = '/'.join(
            re.sub(r'\d{4,}', '44', ''.join(
                rng.choices('pnbrqkPNBRQK12345678', k=rng.randrange(1, 9)))) for _ in range(8))
        castling = ''.join(c for c in 'KQkq' if rng.random() < 0.5) or '-'
        yield f"{ranks} {rng.choice('wb')} {castling} {rng.choice(['-', square()])} {number()} {number()}+{rng.choice(REWARDS)}+{rng.choice('01')}+{rng.choice('01')}"
        k = rng.randrange(1, 6)
        pad = [' ' * rng.randrange(1, 40) for _ in range(3)]
        yield f"{pad[0]}M: {' '.join(move() for _ in range(k))}{pad[1]}E: {' '.join(pawns() for _ in range(k))}{pad[2]}B: {move()}"


def test_every_answer_can_be_written():
    ids = set(GPT2.answer_ids.tolist())
    assert GPT2.eot in ids and len(ids) < 2000 and (GPT2.answer_ids.diff() > 0).all()
    rows = load_rows('positions', 0.5, 0, 'train', 2000)[:]
    said = [r.completion(style) for r in rows for style in ('compact', 'padded')]
    for text in [*said, *random_answers(3000)]:
        assert ids.issuperset(
            found := GPT2.encode(text)), (text, [GPT2.decode([i]) for i in set(found) - ids])
    chess = load_tokenizer('chess')
    assert {chess.eot}.union(*(chess.encode(text)
                               for text in said[::2])) < set(chess.answer_ids.tolist())


def test_every_word_of_an_answer_can_be_written():
    """Each piece that GPT-2 cuts an answer into, in full: numbers, castling rights, marks, and
    every pair of neighbours among the men of a rank."""
    ids, men = set(GPT2.answer_ids.tolist()), 'pnbrqkPNBRQK'
    words = ([space + str(n) for n in range(1000) for space in ('', ' ', ' -', '.')] + [f'.{n:02}' for n in range(100)] + [a + b + c for a in men for b in men for c in men])
    words += ([' ' + ''.join(c for i, c in enumerate('KQkq') if n >> i & 1) for n in range(1, 16)] +
              [' w', ' b', ' -', ' M:', ' E:', ' B:', '/', *(f'+{r}' for r in REWARDS), '+0', '+1'])
    words += [' ' * n for n in range(1, 90)]
    for word in words: assert ids.issuperset(GPT2.encode(word)), word
