"""A test that cannot fail proves nothing: put each fault in, and see the notebook that should catch it turn red.

The faults of the rooms whose lessons take long are put in on demand: FAULTS=all pytest tests/test_mutations.py"""
import functools
import json
import os
import tempfile
import pytest
from mutants import cells, is_exported, prepare, walk

MUTATIONS = [  # notebook, what is there, what stands there instead, the mistake
    ('grpo/01_grpo', "std = (rewards - rewards[:, :1]).std(1, keepdim=True)", "std = rewards.std().expand(len(rewards), 1)", 'std of the batch reported as std of the group'),
    ('grpo/01_grpo', "return (rewards - self.mean) / (self.std + eps)", "return rewards.sub_(self.mean).div_(self.std + eps)", 'rewards overwritten by their normalised values'),
    ('grpo/01_grpo', "log_ratio.clamp(max=80).exp()", "log_ratio.exp()", 'exp of a log-ratio overflows'),
    ('grpo/01_grpo', "torch.minimum(ratio*A, ratio.clamp(low, high)*A)", "ratio.clamp(low, high)*A", 'clipping on the wrong side as well'),
    ('grpo/01_grpo', "default_low, default_high = CLIPS", "default_high, default_low = CLIPS", 'clips swapped'),
    ('grpo/01_grpo', "    return rows * max_length", "    return rows * mask.shape[1]", 'dr_grpo divided by the length that was padded to'),
    ('grpo/01_grpo', "rows = float(mask.any(1).sum())", "rows = float(len(mask))", 'rows without a token stay in the denominator'),
    ('grpo/01_grpo', "mask.sum(1, keepdim=True).clamp(min=1)\n    return values", "mask.shape[1]\n    return values", 'a mean over padding'),
    ('grpo/01_grpo', "x.masked_fill(~mask, 0).sum(dims)", "(x*mask).sum(dims)", 'nan times zero is nan'),
    ('grpo/01_grpo', "logits = logits if ids is None else logits[..., ids]", "logits = logits", 'task vocabulary ignored'),
    ('grpo/01_grpo', "p = logp.clamp_(min=_FLOOR).exp()", "p = logp.exp()", 'zero times infinity where an id is forbidden'),
    ('grpo/01_grpo', "= torch.linalg.vecdot(p, d), -torch", "= (p*d).mean(-1), -torch", 'full KL divided by the vocabulary'),
    ('grpo/01_grpo', "d * g_to_ref[..., None]", "torch.ones_like(d) * g_to_ref[..., None]", 'gradient does not go through the weights of the full KL'),
    ('grpo/01_grpo', "each - g_H*H", "each", 'gradient of the entropy that is not 0 for a shift of all logits'),
    ('grpo/02_kl', "else getattr(facts, direction)", "else facts.kl_ref_pi", 'KL in the other direction'),
    ('grpo/02_kl', "return logprobs - others if mask is None else (logprobs - others).masked_fill(~mask, 0)", "return logprobs - others if mask is None else (logprobs - others)*mask", 'mask after the difference: inf times zero'),
    ('grpo/02_kl', "_difference(logprobs, old_logprobs.detach(), mask).exp() *", "_difference(logprobs, old_logprobs.detach(), mask).exp().detach() *", 'no gradient through the ratio'),
    ('grpo/02_kl', "min(max(self.coef*factor, self.low), self.high)", "self.coef*factor", 'controller without clamps'),
    ('grpo/02_kl', "or step <= self.warmup_steps or not", "or not", 'controller moves during warm-up'),
    ('grpo/03_value', "delta = rewards + gamma*F", "delta = rewards + F", 'no discount'),
    ('grpo/03_value', "gamma*F.pad(values[:, 1:], (0, 1))", "gamma*F.pad(values[:, 1:], (0, 1), value=0.5)", 'a value past the end'),
    ('grpo/03_value', "torch.maximum(", "torch.minimum(", 'value clipping the wrong way round'),
    ('grpo/03_value', "returns.detach()))", "returns))", 'gradient into the returns'),
    ('grpo/05_step', "part.completion_mask & ~(part.truncated[:, None] & config.mask_truncated)", "part.completion_mask & ~part.truncated[:, None]", 'a switch that does nothing'),
    ('grpo/05_step', "targets.kl_coef * add_up(kl(*used, mask))", "targets.kl_coef * masked_mean(kl(*used, mask), mask)", 'KL averaged another way than the loss: micro-batches no longer add up'),
    ('grpo/05_step', "        learner.baseline_moments.update(rewards)\n        facts.baseline_reward = known\n", "        learner.baseline_moments.update(rewards)\n        known = facts.baseline_reward = learner.baseline_moments.mean\n", 'a completion compared with a mean that it is part of'),
    ('grpo/05_step', "    _add_gradients(*learners)\n", "", 'the half of the second thread lost'),
    ('grpo/05_step', "min(size//2, len(lengths)//4)", "min(size, len(lengths)//4)", 'two threads that hold twice as many completions'),
    ('grpo/08_exact_best', "            left.discard(tokens[column])\n", "", 'a move that is named twice is right twice'),
    ('grpo/08_exact_best', "sorted(left) or [end]", "sorted(left)", 'nothing is right where all moves are named'),
    ('grpo/08_exact_best', "drawn.cumsum(1).T", "drawn.T", 'a rest that forgets the moves before the last'),
    ('grpo/08_exact_best', "or j and tokens[column - 1] not in is_move: break", "or False: break", 'a place after the list has ended'),
    ('grpo/06_head', "linear(logits.grad, self.weight.T) / heat", "linear(logits.grad, self.weight.T)", 'the temperature forgotten on the way back to the states'),
    ('grpo/06_head', "self.hidden[at][mask] / heat", "self.hidden[at][mask]", 'the temperature forgotten on the way back to the weight'),
    ('grpo/06_head', "tokens and (tokens + n)*width > most", "tokens and tokens*width > most", 'a row too many in a chunk'),
    ('grpo/07_ranks', "dist.all_reduce(flat)", "dist.all_reduce(flat); flat /= world()", 'a mean of means'),
    ('grpo/07_ranks', "if n else None", "", 'a gradient of 0 where there is none'),
    ('lm/00_products', "rows.sum(0) if of_bias", "rows.mean(0) if of_bias", 'a bias gradient that is a mean'),
    ('reward/03_coherence', "found.total == 1 or ", "", 'an exact answer that pays for valuing all moves alike'),
    ('lm/04_generate', "if vocabulary is not None: new = vocabulary[new]", "pass", 'a place among the ids of a task taken for an id'),
    ('lm/04_generate', "model.head(completion_hidden(model, rollouts, rows), rollouts.vocabulary)", "model.head(completion_hidden(model, rollouts, rows))", 'all ids in scoring, those of a task in sampling'),
    ('lm/07_tree', "self.prompt, P = self.prompt[parents],", "self.prompt, P = self.prompt[:len(parents)],", 'a node that looks at the prompt of its slot, not of its parent'),
    ('lm/07_tree', "past[:, :, :, to] = past[:, :, :, parents[to]]", "past[:, :, :, to] = past[:, :, :, parents[to] - 1]", 'a node that continues another one'),
    ('lm/07_tree', "(share.mT*v).sum(-2, keepdim=True)", "(share.mT*v).mean(-2, keepdim=True)", 'a mean over the columns of a node'),
    ('lm/07_tree', "q = q*q.shape[-1]**-0.5", "pass", 'scores without the scale'),
    ('lm/07_tree', "if self.padding is not None: self.padding = self.padding[left]", "pass", 'the padding of prompts that have gone'),
    ('lm/07_tree', "self.read[left],", "self.read[:len(left)],", 'the lengths of prompts that have gone'),
    ('lm/08_packed', "positions_from_mask(seen)[:, Tp:])", "positions_from_mask(mask))", 'completions that begin at position 0'),
    ('lm/08_packed', "copies = prompts[:, None]", "copies = prompts.flip(0)[:, None]", 'completions that look at another prompt'),
    ('lm/08_packed', "first.index_select(0, self.which)", "first.index_select(0, self.which*0)", 'the last state of another prompt'),
    ('lm/06_drafts', "drawn = torch.arange(ids.shape[1], device=n.device) < n[:, None]", "drawn = torch.arange(ids.shape[1], device=n.device) <= n[:, None]", 'a token drawn behind the first difference'),
    ('lm/06_drafts', "eot, vocabulary, *(s[p] for s in settings))\n        parts.append((rows[rest], n[rest], *found))", "eot, vocabulary, *(s[:len(p)] for s in settings))\n        parts.append((rows[rest], n[rest], *found))", 'rows that left their draft go on with settings of another prompt'),
    ('lm/06_drafts', "_from(noise[rest], n[rest])", "noise[rest]", 'random numbers used twice'),
    ('lm/01_tokenizer', "r' ?[0-9]{1,3}'", "r'[0-9]{1,3}'", 'numbers that no eval can begin with'),
    ('grpo/04_experience', "and luck >= _SECOND_CHANCE", "", 'hard prompts never asked again'),
    ('grpo/04_experience', "self._rare[self.used['rare'] - 1]", "self._rare[self.used['rare'] % 2]", 'the same two rare moves again and again'),
    ('grpo/04_experience', "if len(legal_moves(row.fen)) < _NARROW: return row", "return row", 'any position passes for a narrow one'),
    ('grpo/04_experience', "_drawn(seed, _count_up(used, 'seen'), len(rows), 'narrow')", "_drawn(seed, used['narrow'], len(rows), 'narrow')", 'a search that starts again where it was'),
    ('grpo/04_experience', "known &= batch.rewards.min(1).values < 1", "known &= batch.rewards.min(1).values < 2", 'groups stay that have nothing to learn'),
    ('lm/02_model', "(q,), (k, v) = (self._heads(linear(x[:, -n:]", "(q,), (k, v) = (self._heads(linear(x[:, :n]", 'the first columns ask in place of the last'),
    ('grpo/04_experience', "limits=[limits[e.kind] for e in examples]", "limits=[limits['PA'[e.kind == 'P']] for e in examples]", 'each task cut at the length of the other'),
    ('grpo/04_experience', "most = torch.tensor([limits[e.kind] for e in batch.examples])", "most = torch.tensor([limits['P'] for e in batch.examples])", 'long answers to A punished by the length of P'),
    ('grpo/05_step', "targets.returns, mask, config.value_clip, tokens)", "targets.returns, mask, config.value_clip)", 'value loss averaged by micro-batch'),
    ('grpo/05_step', " or learner.reference and config.kl_in == 'loss'\n", "\n", 'no KL for a group without advantages'),
    ('grpo/05_step', "if more or not some.any() else some", "if more else some", 'a gradient that is missing, not 0'),
    ('run/05_pretrain', "a, b, c = 3.4445, -4.7750, 2.0315", "a, b, c = 3.4445, -4.7750, 2.0135", 'a digit of a coefficient'),
    ('run/05_pretrain', "return orthogonalized(matrices.mT, rounds).mT", "return orthogonalized(matrices.mT, rounds - 1).mT", 'tall matrices get a round less'),
    ('run/05_pretrain', "m.mul_(group['momentum']).add_(p.grad)", "m.lerp_(p.grad, 1 - group['momentum'])", 'another momentum'),
    ('run/05_pretrain', "ahead = p.grad + group['momentum']*m", "ahead = m.clone()", 'no Nesterov'),
    ('run/05_pretrain', "pieces.get(name, 1)) for", "1) for", 'query, key and value made orthogonal as one'),
    ('run/05_pretrain', "    moved.zero_()\n", "", 'parts that move on with every step'),
    ('run/05_pretrain', "embedding.index_add_(0, rows, moved[part])", "embedding[rows] += moved[part]", 'a move goes with one of its parts only'),
    ('run/05_pretrain', "max(1, rows/columns)**0.5", "max(1, columns/rows)**0.5", 'scaled by the wrong side'),
    ('run/04_targets', "for c in uci)\n", "for c in uci[::-1])\n", 'moves mirrored backwards'),
    ('run/04_targets', "''.join(c for c in 'KQkq' if c in swapped) or '-', _mirrored_move(en_passant)", "castling, _mirrored_move(en_passant)", 'castling rights not swapped'),
    ('run/04_targets', "(w - max(worth[j:])) / spread) for w in worth[j:]]", "(w - max(worth)) / spread) for w in worth]", 'candidates already listed keep their odds'),
    ('run/04_targets', "legal_share/len(legal) + (1 - legal_share)*", "legal_share/len(legal) + ", 'odds that add up to more than 1'),
    ('run/04_targets', "for place in r.soft or (): w[len(r.prompt) + place] = 0.0", "pass", 'the token that stands there counts beside the odds'),
    ('run/04_targets', "batch.soft_column - first]", "batch.soft_column - first - 1]", 'odds one place too early'),
    ('run/04_targets', "hidden[learned]).log_softmax(-1)", "hidden[learned]).log_softmax(0)", 'normalised over the places'),
    ('run/04_targets', "block_rows // size", "block_rows // size - 1", 'rows of a block left out'),
    ('run/04_targets', "if split_of(row['fen']) == 'train'", "", 'positions of the eval split among the training rows'),
    ('run/04_targets', "== 'train': example = other", "== 'train': pass", 'colours never swapped'),
    ('run/04_targets', "rng.random() < config.flip and split_of((other := _mirrored(example)).fen) == 'train'", "rng.random() < config.flip and (other := _mirrored(example))", 'colours swapped into the evaluation split'),
    ('run/04_targets', "random.Random(f'{config.seed} P {passes}')", "random.Random(f'{config.seed} P {number}')", 'files drawn anew for every block'),
    ('run/04_targets', "rng.random() < config.shuffled", "rng.random() >= config.shuffled/9", 'nearly all candidates out of order'),
    ('run/04_targets', "return replace(example, target=PolicyAnswer(moves, evals, t.best))", "return replace(example, target=PolicyAnswer(moves, evals, moves[0]))", 'another best move when candidates are put in another order'),
    ('run/04_targets', "return replace(example, target=PolicyAnswer(moves, evals, t.best))", "return replace(example, target=PolicyAnswer(moves, t.evals, t.best))", 'evals that stay when candidates move'),
    ('run/04_targets', "{prompt.index(asked) - len(prompt): [", "{prompt.index(asked) - len(prompt) + 1: [", 'odds over the moves once the move is known'),
    ('run/04_targets', "odds = torch.where(batch.soft_weight < 0, -torch.log1p(-odds.exp().clamp(max=1 - 1e-6)), odds)", "pass", 'what must not stand there is only made less likely'),
    ('run/04_targets', "example.target.moves[:j], -repeat_weight", "example.target.moves[:j + 1], -repeat_weight", 'the wanted candidate counts as a repetition'),
    ('run/04_targets', "learned[row, soft_column] = True", "pass", 'odds in the prompt forgotten'),
    ('run/05_pretrain', "group['lr'] = peak * factor", "group['lr'] = peak", 'no schedule'),
    ('run/05_pretrain', "load_checkpoint(found, model, optimizer, generators=True)", "load_checkpoint(found, model, generators=True)", 'the optimizer forgets'),
    ('run/05_pretrain', "stream.batch(step - 1)", "stream.batch(step - 1 - done)", 'rows begin anew after resuming'),
]

ON_DEMAND = {'lm/01_tokenizer', 'run/05_pretrain', 'run/04_targets', 'lm/06_drafts', 'lm/04_generate', 'grpo/04_experience', 'grpo/05_step'}   # 10 to 70 seconds each
ALL = MUTATIONS
if os.environ.get('FAULTS') != 'all': MUTATIONS = [m for m in MUTATIONS if m[0] not in ON_DEMAND]


@pytest.fixture(scope='module', autouse=True)
def quiet(): prepare()


def places(notebook, before):
    "The exported cells that have a text."
    return [i for i, s in enumerate(cells(notebook)) if is_exported(s) and before in s]


@pytest.mark.parametrize('notebook', sorted({m[0] for m in ALL}))
def test_every_fault_has_its_place(notebook):
    "Also those on demand, so that none is about a line that has gone."
    assert [before for name, before, *_ in ALL if name == notebook and len(places(notebook, before)) != 1] == []


@functools.cache
def verdicts(notebook):
    "A walk through the notebook, each of its faults put in on the way: is it red without a fault (None) and with each of them?"
    todo = []
    for _, before, after, mistake in (m for m in MUTATIONS if m[0] == notebook):
        place, = places(notebook, before)
        todo.append((place, cells(notebook)[place].replace(before, after), mistake))
    with tempfile.TemporaryFile('w+') as f:
        walk(notebook, todo, lambda row: print(json.dumps(row), file=f, flush=True), whole=False)
        f.seek(0)
        rows = [json.loads(line) for line in f]
    return {row.get('id'): row['killed'] if 'id' in row else not row['green'] for row in rows}


@pytest.mark.parametrize('notebook', sorted({m[0] for m in MUTATIONS}))
def test_green_without_fault(notebook): assert verdicts(notebook)[None] is False, f'{notebook} fails by itself, so its redness proves nothing'


@pytest.mark.parametrize('notebook,before,after,mistake', MUTATIONS, ids=[m[3] for m in MUTATIONS])
def test_fault_is_seen(notebook, before, after, mistake): assert verdicts(notebook)[mistake], f'{notebook} passes although: {mistake}'
