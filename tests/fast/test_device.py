"""Computing as on a GPU, without one: rounding, fixed shapes, no waiting, a reference elsewhere,
and the rehearsal of the day with a card."""
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from rookworld_nb.apps.cli import read_config
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo import head, step as learning
from rookworld_nb.grpo.experience import PromptSource, collect
from rookworld_nb.grpo.step import Learner, make_targets, train_step, update
from rookworld_nb.fast import device
from rookworld_nb.fast.device import NUMBERS, FixedDecoder, no_waiting, set_numbers, to_device
from rookworld_nb.fast.generate import generate
from rookworld_nb.lm.model import GPT, PRESETS
from rookworld_nb.lm.tokenizer import load_tokenizer

TOKENIZER, ROWS = load_tokenizer('chess'), load_rows('positions', 0.5, 0, 'train', 40)[:]
PROMPTS = [e.prompt(TOKENIZER.style) for e in ROWS[:5]]
CONFIG = TrainConfig(data='positions', reward_source='auto', env_ratio=0.5, kl_coef=0.0,
                     prompts_per_step=2, group_size=4, max_new_tokens=12, temperature=0.7,
                     learning_rate=1e-2, warmup_steps=0, dynamic_sampling=False,
                     mask_truncated=False, kl_every=0, device='cpu')


def tiny():
    torch.manual_seed(0)
    model = GPT(replace(PRESETS['tiny'], vocab_size=TOKENIZER.vocab_size, n_positions=192)).eval()
    with torch.no_grad(): model.wte.weight.mul_(8)      # far from uniform
    return model


def sampled(model, fixed, **choices):
    set_numbers(model, fixed_shapes=fixed)
    return generate(model, TOKENIZER, PROMPTS, 3, **dict(max_new_tokens=60, seed=1) | choices)


@pytest.mark.parametrize('choices', [
    dict(),
    dict(top_k=5, top_p=0.9, temperature=[0, 0.5, 1, 1, 2.], limits=[1, 60, 50, 2, 7]),
    dict(temperature=0, vocabulary=TOKENIZER.answer_ids)
], ids=['plain', 'cut', 'greedy'])
def test_fixed_shapes_draw_the_same(choices):
    model = tiny()
    a, b = sampled(model, False, **choices), sampled(model, True, **choices)
    assert a.completions == b.completions and torch.equal(
        a.completion_ids, b.completion_ids) and torch.equal(
            a.completion_mask, b.completion_mask) and torch.equal(a.truncated, b.truncated)
    torch.testing.assert_close(a.logprobs, b.logprobs, rtol=0, atol=1e-5)
    assert (a.kept is None) == (b.kept is None) and (a.kept is None or torch.equal(a.kept, b.kept))


def test_weights_that_have_moved_are_used():
    model = tiny()
    for dtype in NUMBERS:
        set_numbers(model, dtype, True)
        before = generate(model, TOKENIZER, PROMPTS, 3, 12, seed=1)
        with torch.no_grad():
            for p in model.parameters(): p.mul_(1.2)
        set_numbers(model, dtype, True)
        after, fresh = generate(model, TOKENIZER, PROMPTS, 3, 12, seed=1), tiny_copy(model)
        set_numbers(fresh, dtype, True)
        assert torch.equal(
            after.logprobs,
            generate(fresh, TOKENIZER, PROMPTS, 3, 12,
                     seed=1).logprobs) and not torch.equal(after.logprobs, before.logprobs)


def tiny_copy(model):
    copied = tiny()
    copied.load_state_dict(model.state_dict())
    return copied


def test_a_step_waits_for_nothing_and_has_no_new_shape():
    """torch.compile refuses what it cannot capture whole, and counts what it compiles: one step for
    each part of the cache, never again."""
    from torch._dynamo.testing import CompileCounter
    model, compiled, advance = tiny(), CompileCounter(), FixedDecoder.advance
    def quiet(self, t):
        with no_waiting(): advance(self, t)

    with patch.object(FixedDecoder, 'advance', quiet):
        sampled(model, True, temperature=[0, 0.5, 1, 1, 2.], top_k=5)
    with patch.object(device, '_BACKEND', compiled):
        first = sampled(model, True)
        assert compiled.frame_count == 2 and first.completion_mask.sum(1).max() > 48
        sampled(model, True, seed=3)
        generate(model, TOKENIZER, PROMPTS[:4] + ['P: '], 3, 50, seed=5)
        assert compiled.frame_count == 2
    assert torch.equal(first.logprobs, sampled(model, True).logprobs)


@pytest.mark.parametrize('work', [
    lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: x.tolist(),
    lambda x: bool((x > 0).any()), lambda x: x.unique()
])
def test_what_waits_is_refused(work):
    with pytest.raises(RuntimeError, match='waits for the GPU'), no_waiting():
        work(torch.arange(3.))
    with no_waiting(): assert (torch.arange(3.)[torch.tensor([1])] + 1).shape == (1,)


class Waits(TorchDispatchMode):
    "Counts numbers that the CPU asks for."
    count = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name == 'aten::_local_scalar_dense'
        return func(*args, **(kwargs or {}))


def test_no_number_is_asked_for_between_the_pieces_of_a_pass(monkeypatch):
    counts = []
    for chunk in (2**23, 1):      # one piece; one for every row
        monkeypatch.setattr(head, 'CHUNK', chunk)
        learner = Learner(tiny(), TOKENIZER, replace(CONFIG, kl_coef=0.1))
        batch, _ = collect(learner.model, TOKENIZER, ROWS[:2], CONFIG, 3)
        batch.rewards = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
        with Waits() as waits: update(learner, batch, make_targets(learner, batch, 2)[0], 2)
        counts.append(waits.count)
    assert counts[0] == counts[1]


# ---- bfloat16

def stepped(**choices):
    learner = Learner(tiny(), TOKENIZER, replace(CONFIG, **choices))
    row, _ = train_step(learner, PromptSource(load_rows('positions', 0.5, 0, 'train', 40), 0), 1)
    return learner, row


@pytest.mark.parametrize('compile', [False, True])
def test_bfloat16_reaches_both_sides_and_no_weight(compile):
    (exact, plain), (learner, row) = stepped(), stepped(dtype='bfloat16', compile=compile, kl_coef=0.1)
    assert {p.dtype
            for p in learner.parameters()} == {p.grad.dtype
                                               for p in learner.parameters()} == {torch.float32}
    assert {x.dtype for s in learner.optimizer.state.values() for x in s.values()} == {torch.float32}
    assert row['sampling_gap_nats'] < NUMBERS['bfloat16'].identity and row[
        'kl_nats_per_token'] == 0 and row['entropy_nats'] != plain['entropy_nats']
    assert exact.model.products is None and learner.model.products == learner.reference.products == torch.bfloat16


def test_the_check_follows_the_dtype():
    "A gap that bfloat16 may have stops a run in float32."
    with patch.dict(NUMBERS, bfloat16=replace(NUMBERS['bfloat16'], identity=1e-7)), pytest.raises(
            RuntimeError, match='scoring differs from sampling'):
        stepped(dtype='bfloat16', compile=True)


def test_float32_is_not_rounded_on_a_card():
    with patch.object(torch, 'set_float32_matmul_precision') as said, patch.object(
            torch.Tensor, 'is_cuda', True):
        for dtype in NUMBERS: set_numbers(tiny(), dtype)
    assert [c.args for c in said.call_args_list] == [('highest',), ('high',)]


# ---- the command line, and a reference elsewhere

def config_of(line): return read_config(TrainConfig, line.split(), 'rookworld_train', environ={})[0]


@pytest.mark.parametrize('line,field,value',
                         [('--use_mixed_precision', 'dtype', 'bfloat16'),
                          ('--bf16', 'dtype', 'bfloat16'),
                          ('--dtype bfloat16 --no_use_mixed_precision', 'dtype', 'float32'),
                          ('--use_torch_compile', 'compile', True),
                          ('--compile --no-use-torch-compile', 'compile', False),
                          ('--reference_device cpu', 'reference_device', 'cpu')])
def test_spellings(line, field, value): assert getattr(config_of(line), field) == value


@pytest.mark.parametrize('line,words', [
    ('--reference_device meta', "'auto', 'cpu', 'cuda'"),
    ('--reference_device cpu --kl_coef 0 --kl_every 0', 'there is no reference'),
    ('--bf16 --loss_type gspo', 'finer than bfloat16'),
    ('--bf16 --loss_type gspo --clip_low 1e-2', 'finer than bfloat16'),
    ('--dtype float16', 'one of float32, bfloat16')
])
def test_refused_in_a_sentence(line, words):
    with pytest.raises(ValueError, match=words): config_of(line)


def test_reference_on_another_device():
    learner, row = stepped(kl_coef=0.1, reference_device='cpu')
    assert row['kl_nats_per_token'] == 0 and learner.reference.wte.weight.device.type == 'cpu'
    if torch.cuda.device_count() == 0:
        with pytest.raises(ValueError, match='finds 0 cuda devices here'):
            stepped(kl_coef=0.1, reference_device='cuda')
    r = generate(learner.model, TOKENIZER, PROMPTS, 3, 6).to('meta')
    assert {x.device.type for x in vars(r).values() if torch.is_tensor(x)} == {'meta'}
    with patch.object(learning, 'pick_device', lambda name: 'meta'):
        assert stepped_reference_is_on('meta')


def stepped_reference_is_on(kind):
    return Learner(tiny(), TOKENIZER,
                   replace(CONFIG, kl_coef=0.1,
                           reference_device='cpu')).reference.wte.weight.device.type == kind


def test_to_device():
    x = torch.arange(3)
    assert to_device(x, 'cpu') is x and to_device(x, 'meta').device.type == 'meta'
    with patch.object(torch.Tensor, 'pin_memory', lambda self: self), patch.object(
            torch.Tensor, 'to', lambda self, where, non_blocking=False: (where.type, non_blocking)):
        assert to_device(x, 'cuda:1') == ('cuda', True)


# ---- the day with a card

def test_gpu_day(tmp_path, capsys):
    file = Path(__file__).parents[2]/'nbs'/'experiments'/'2026-11-26-card'/'gpu_day.py'
    spec = importlib.util.spec_from_file_location('gpu_day', file)
    day = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(day)
    for words in ('identity: {', 'identity: finished already'):
        day.main(['--small', '--piece', 'identity', '--out', str(tmp_path)])
        assert words in capsys.readouterr().out
    told, rows = json.loads((tmp_path/'identity.json').read_text()), pd.read_csv(tmp_path/'identity.csv')
    assert told['finished'] and told['found']['within'] and told.keys() >= {'card', 'torch', 'commit', 'seed', 'seconds'}
    assert set(rows.arm) >= {'tree float32', 'fixed bfloat16', 'compiled bfloat16'
                             } and (rows.gap_max <= rows.tolerance).all() and (
                                 rows[rows.arm == 'fixed float32'].same_as_tree_float32 == 1).all()
