"""Every value of every option trains: finite numbers, the identities hold before the first update,
and what should act does."""
import contextlib
import copy
import hashlib
import json
import math
from functools import cache
from inspect import signature
from pathlib import Path
from unittest.mock import patch
import pytest
from rookworld_nb.run import held_out
from rookworld_nb.run.train import train
from rookworld_nb.apps.cli import _canonical, make_parser, read_config
from rookworld_nb.config import Config, TrainConfig, describe, kind_of
from rookworld_nb.chess.engine import find_engine
from rookworld_nb.grpo import experience, step
from rookworld_nb.grpo.kl import KLController
from rookworld_nb.grpo.value import value_loss
from rookworld_nb.fast import device
from rookworld_nb.names import ALIASES, ELSEWHERE, GONE
from rookworld_nb.run import health
from runs import some_positions, unmeasured

# both groups of each step have a reward to learn from (seed)
COMMON = dict(data='positions', seed=10, temperature=1.5, env_temperature=1.5, max_steps=2,
              max_refills=0, prompts_per_step=2, group_size=4, env_ratio=0.5, learning_rate=1e-3,
              warmup_steps=1, eval_prompts=2, log_completions=1, threads=1, kl_coef=0.0)
# what must be switched on for an option to be seen; whether it does anything at all, the
# configuration knows (`without_effect`)
NEEDS = {
    '': dict(max_steps=1), 'second': {}, 'kl': dict(kl_coef=0.1),
    'steered': dict(max_steps=3, kl_coef=0.1, kl_controller='ziegler', kl_target=0.01),
    'value': dict(baseline='value'), 'far': dict(max_steps=1, inner_steps=4, learning_rate=5e-3),
    'normal': dict(normalize_rewards=True, ema_warmup_steps=0), 'early': dict(ema_warmup_steps=0)
}
NUMBERS = [ # (option, value, what it needs)
    ('temperature', 0.7, ''), ('top_k', 5, ''), ('top_p', 0.9, ''), ('env_temperature', 0.7, ''),
    ('seed', 1, ''), ('group_size', 2, ''), ('prompts_per_step', 3, ''), ('env_ratio', 0.2, ''),
    ('max_new_tokens', 30, ''), ('env_max_new_tokens', 10, ''), ('learning_rate', 1e-4, ''),
    ('warmup_steps', 3, ''), ('min_lr_ratio', 1.0, 'second'), ('weight_decay', 0.1, ''),
    ('grad_clip', 1e-3, ''), ('inner_steps', 2, ''), ('minibatches', 2, ''),
    ('entropy_coef', 0.01, ''), ('max_positions', 20, ''), ('clip_low', 0.01, 'far'),
    ('clip_high', 0.01, 'far'), ('ema_momentum', 0.1, 'normal'), ('ema_warmup_steps', 3, 'normal'),
    ('reward_weights', 'regret=0.9 changed=0.9', 'labelled'), ('reward_warmup_steps', 3, ''),
    ('rare_share', 1.0, ''), ('coherence_share', 0.1, 'labelled'), ('gamma', 0.9, 'value'),
    ('gae_lambda', 0.5, 'value'), ('kl_coef', 0.1, 'second'), ('kl_target', 50.0, 'steered'),
    ('kl_warmup_steps', 2, 'kl'), ('kl_warmup_factor', 0.5, 'warming'),
    ('reference_refresh_steps', 1, 'kl')
]
NEEDS |= {'warming': dict(kl_coef=0.1, kl_warmup_steps=2), 'labelled': dict(reward_source='auto')}
WORDS = {
    'kl_estimator': 'kl', 'kl_type': 'kl', 'kl_in': 'kl', 'kl_controller': 'steered',
    'gae': 'value', 'normalize_rewards': 'early'
}
# compile draws the same samples (tests/fast/test_device); nothing is truncated in one small step,
# refills are by chance: tested in grpo/05_step, grpo/04_experience
SILENT = {'mask_truncated', 'dynamic_sampling', 'compile'}
# what auto means by default; of such a small step the whole batch fits
SAME = {('advantage_scale', 'group'), ('micro_batch_size', 'auto'), ('kl_estimator', 'full')}

def worded():
    "Every value of every option that is a choice of words, or a switch."
    for c in describe(TrainConfig):
        plain, choices, _ = kind_of(c.annotation)
        for value in choices or ((True, False) if plain is bool else ()):
            yield c.name, value, WORDS.get(c.name, '')


CASES = [*worded(), *NUMBERS]
# the others do not reach the evaluation, which takes half of such a short run
EVALUATED = {'temperature', 'top_k', 'top_p', 'env_temperature'}


def remembered(work):
    """`generate` for many runs that begin alike: the same weights with the same settings are asked
    once."""
    known = {}
    def generate(model, *how, drafts, **more):
        weights = hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in model.parameters())).digest()
        key = weights, str(
            (model.products, model.fixed_shapes, how[1:], drafts
             is None, {k: v.tolist() if hasattr(v, 'tolist') else v
                       for k, v in more.items()}))
        if key not in known: known[key] = work(model, *how, drafts=drafts, **more)
        return copy.deepcopy(known[key])
    return generate


@pytest.fixture(scope='module')
def rows(tmp_path_factory):
    with patch.object(held_out, 'load_rows',
                      cache(held_out.load_rows)), patch.object(experience, 'generate',
                                                               remembered(experience.generate)):
        yield Path(some_positions(tmp_path_factory.mktemp('data')))


IDLE = {}     # choices: the options that do nothing under them


@cache
def ran(choices, data):
    "Train under some choices, given on the command line; check every row of metrics; the weights."
    values = (COMMON | dict(choices) | dict(data=data, output_dir=str(data) + f'-{abs(hash(choices))}'))
    flags = [
        f'--{k}={v}' if not isinstance(v, bool) else f'--{"" if v else "no_"}{k}'
        for k, v in values.items()
    ]
    config, _ = read_config(TrainConfig, flags, 'rookworld_train', environ={})
    IDLE[choices] = set(config.without_effect())
    with contextlib.nullcontext() if EVALUATED & dict(choices).keys() else unmeasured():
        out = train(config)
    metrics = [json.loads(line) for line in (out/'metrics.jsonl').read_text().splitlines()]
    assert len(metrics) == values['max_steps']
    for row in metrics:
        assert all(math.isfinite(v) for v in row.values() if v is not None), row
        assert row['sampling_gap_nats'] < device.NUMBERS[config.dtype].identity
        assert values.get('kl_coef', 0) == 0 or row['kl_nats_per_token'] is not None
        if values.get('inner_steps', 1) * values.get('minibatches', 1) == 1:
            assert abs(row['ratio_max'] - 1) < device.NUMBERS[
                config.dtype].identity and row['clip_share_low'] == row['clip_share_high'] == 0
            if row['step'] == 1 and values.get('kl_coef'): assert row['kl_nats_per_token'] == 0
    last = sorted(out.glob('checkpoints/step-*'))[-1]
    return (last/'model.safetensors').read_bytes()


@pytest.mark.parametrize('option,value,needs', CASES, ids=[f'{o}={v}' for o, v, _ in CASES])
def test_option(option, value, needs, rows, capsys):
    if value == 'engine' and not find_engine(): pytest.skip('no Stockfish here')
    base = dict(NEEDS.get(needs, {}))
    without = ran(tuple(sorted(base.items())), rows)
    if value == getattr(TrainConfig(**(COMMON | base)), option): return
    weights = ran(tuple(sorted((base | {option: value}).items())), rows)
    changes = option in SILENT or (option, value) in SAME or weights != without
    assert changes and not {option} & IDLE[tuple(sorted(
        (base | {option: value}).items()))], f'{option} = {value} changed nothing, or is said to'


@pytest.mark.slow
@pytest.mark.parametrize('option,value,needs', CASES, ids=[f'{o}={v}' for o, v, _ in CASES])
def test_nothing_is_silent(option, value, needs, rows, capsys):
    "Without what an option needs, it does nothing, and that is said; or it does something."
    if value == 'engine' and not find_engine(): pytest.skip('no Stockfish here')
    if value == getattr(TrainConfig(**COMMON), option): return
    alone = ((option, value),)
    try: changes = ran(alone, rows) != ran((), rows)
    except ValueError as e: assert option in str(e)
    else:
        assert changes or option in SILENT or (option, value) in SAME or option in IDLE[
            alone], f'{option} = {value} changed nothing, and nobody was told'


def test_enough_combinations(): assert len(CASES) >= 40


SEED = [
    '--steps 100 --batch_size 8 --k_samples 8 --lr 1e-5', '--kl_type symmetric',
    '--kl_type forward --kl_coef 0.02', '--kl_type reverse --kl_coef 0.02',
    '--baseline_type adaptive', '--no_gae'
]

@pytest.mark.parametrize('line', SEED)
def test_seed_command(line, rows, tmp_path, capsys):
    "The commands of the seed documents, cut to two small steps."
    flags = [
        *line.split(), '--max_steps', '2', '--max_refills', '0', '--prompts_per_step', '2',
        '--group_size', '4', '--eval_prompts', '2', '--threads', '1', '--data',
        str(rows), '--output_dir',
        str(tmp_path/'run')
    ]
    config, _ = read_config(TrainConfig, flags, 'rookworld_train', environ={})
    with contextlib.nullcontext() if line == SEED[0] else unmeasured():
        assert (train(config)/'comparison.json').exists()


MEANT = {
    'steps': ['max_steps'],
    'batch_size': ['prompts_per_step'],
    'batch_positions': ['prompts_per_step'],
    'k_samples': ['group_size'],
    'lr': ['learning_rate'],
    'mix_env_ratio': ['env_ratio'],
    'baseline_type': ['baseline'],
    'use_gae': ['gae'],
    'no_use_gae': ['gae'],
    'lam': ['gae_lambda'],
    'model_path': ['model'],
    'model_name_or_path': ['model'],
    'log_dir': ['output_dir'],
    'clip_range': ['clip_low', 'clip_high'],
    'kl_divergence_threshold': ['kl_act'],
    'target_kl': ['kl_target'],
    'reward_momentum': ['ema_momentum'],
    'adaptive_kl': ['kl_controller'],
    'no_adaptive_kl': ['kl_controller'],
    # other spelling: the fields it means
    'use_mixed_precision': ['dtype'],
    'no_use_mixed_precision': ['dtype'],
    'bf16': ['dtype'],
    'use_torch_compile': ['compile'],
    'no_use_torch_compile': ['compile']
}
# those that take no value, and what they say
ALONE = {
    'use_gae': True, 'no_use_gae': False, 'adaptive_kl': 'threshold', 'no_adaptive_kl': 'fixed',
    'use_mixed_precision': 'bfloat16', 'no_use_mixed_precision': 'float32', 'bf16': 'bfloat16',
    'use_torch_compile': True, 'no_use_torch_compile': False
}

@pytest.mark.parametrize('cls', Config.__subclasses__(), ids=lambda cls: cls.__name__)
def test_every_spelling_is_understood(cls):
    "Every field and every other word for one, with - and with _, with a space and with =."
    own = {c.name: kind_of(c.annotation)[0] for c in describe(cls)}
    words = ([([name], name, None if plain is not bool else True)
              for name, plain in own.items()] + [([name], f'no_{name}', False)
                                                 for name, plain in own.items() if plain is bool])
    words += [(names, short, ALONE.get(short)) for short, names in MEANT.items()
              if own.keys() >= {*names} and short not in own]
    for names, spelling, value in words:
        for flag in {f'--{spelling}', f'--{spelling.replace("_", "-")}'}:
            for args in [[flag]] if value is not None else [[flag, '7'], [f'{flag}=7']]:
                given, unknown = make_parser(cls, 'rookworld_any').parse_known_args(_canonical(args, cls))
                assert (vars(given), unknown) == ({
                    name: ('7/run-NNN' if spelling == 'log_dir' else '7')
                    if value is None else value
                    for name in names
                }, []), args


def test_every_other_spelling_has_an_example(): assert MEANT.keys() == ALIASES.keys()


@pytest.mark.parametrize('name', ELSEWHERE)
def test_a_name_of_another_trainer_is_answered(name):
    "On the command line, in Python and in a file."
    says = f'; here it is (--)?{ELSEWHERE[name]}'
    with pytest.raises(ValueError, match=says):
        read_config(TrainConfig, [f'--{name}', '1'], 'rookworld_train', environ={})
    with pytest.raises(TypeError, match=says): TrainConfig(**{name: 1})
    with pytest.raises(ValueError, match=says): TrainConfig.from_json(json.dumps({name: 1}))


def test_what_is_gone_has_its_value_in_the_code():
    "An old file may still give it: the value that we say is always used is the one that is."
    kl, value = (signature(f).parameters for f in (KLController, value_loss))
    assert dict(value_coef=step._VALUE_COEF, value_clip=value['clip'].default, kl_horizon=kl['horizon'].default,
                kl_coef_min=kl['low'].default, kl_coef_max=kl['high'].default, reference_mix=step._REFRESH,
                max_skips=health._IN_A_ROW).items() <= GONE.items()
