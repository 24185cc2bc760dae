"""What is set and does nothing is refused, or answered in one line: every command, every field,
every case in which another choice leaves it idle."""
import itertools
import json
import warnings
import pytest
from rookworld_nb.apps.cli import read_config
from rookworld_nb.config import Config, Idle, NoEffect, Notice, TrainConfig, complaint, describe, kind_of
from rookworld_nb.run.run_log import open_run
from rookworld_nb.sweep.space import read_space

COMMANDS = {
    cls: 'rookworld_' + cls.__name__.removesuffix('Config').lower()
    for cls in Config.__subclasses__()
}
TEXTS = dict(tasks=['K:1'], data=['positions', 'unlabelled', 'mine.parquet'],
             opponent=['random', 'fairymax:2', 'stockfish:3',
                       'runs/other'], reward_function=['mine:reward'], device=['cpu'],
             reference_device=['cpu'], push=['org/name'], license=['mit'], study=['s'])


def values(choice):
    "Values of a field that its line allows."
    plain, words, optional = kind_of(choice.annotation)
    tried = {
        bool: [True, False], int: [0, 1, 2, 3, 5, 40, 1000], float: [0.0, 0.05, 0.5, 1.0, 2.0],
        str: [] if words else TEXTS.get(choice.name, ['x'])
    }[plain]
    return [
        v for v in dict.fromkeys([*tried, *words, choice.default, *[None]*optional])
        if not complaint(choice.annotation, v)
    ]


def flag(name, value):
    if isinstance(value, bool): return f'--{"" if value else "no_"}{name}'
    return f'--{name}={"none" if value is None else value}'


def made(cls, choices):
    with warnings.catch_warnings(action='ignore', category=Notice):
        try: return cls(**choices)
        except ValueError: return None


def read_by(when):
    "The fields that a condition reads, itself or through a function that it calls."
    names = set(when.__code__.co_names)
    return names.union(*(read_by(f) for name in names
                         if hasattr(f := when.__globals__.get(name), '__code__')))


def situations(cls, rule):
    "Choices, as few as possible, in which a rule leaves its fields idle."
    read = read_by(rule.when) | {'data', 'games'}
    if 'shares' in read: read.add('env_ratio')
    listed = [(c.name, v) for c in describe(cls) if c.name in read for v in values(c)]
    for n in range(3):
        found = [dict(some) for some in itertools.combinations(listed, n) if len(dict(some)) == n
                 and (config := made(cls, dict(some))) and rule.when(config)]
        if found: return found[:3]
    return []


RULES = [(cls, rule) for cls in COMMANDS for rule in cls.idle]


@pytest.mark.parametrize(
    'cls, rule', RULES,
    ids=[f'{cls.__name__}-{rule.fields.split()[0]}-{i}' for i, (cls, rule) in enumerate(RULES)])
def test_given_and_idle(cls, rule, capsys):
    choices, known = situations(cls, rule), {c.name: c for c in describe(cls)}
    assert choices, rule
    for base in choices:
        for name in rule.fields.split():
            silent = 0
            for value in values(known[name]):
                args = [flag(k, v) for k, v in base.items() if k != name] + [flag(name, value)]
                try: config, _ = read_config(cls, args, COMMANDS[cls], environ={})
                except ValueError as e:
                    assert name in str(e) and '\n' not in str(e), (args, e)
                    continue
                said = [
                    line for line in capsys.readouterr().err.splitlines() if 'no effect' in line
                    and name in line.split(' no effect')[0].replace(',', ' ').split()
                ]
                assert len(said) == (name in config.without_effect()), (args, said)
                silent += not said
            assert silent < len(values(known[name])), f'{name} is never idle with {base}'


def test_every_rule_is_about_fields():
    for cls in COMMANDS:
        assert all(isinstance(rule, Idle) for rule in cls.idle) and {
            name
            for rule in cls.idle
            for name in rule.fields.split()
        } <= {c.name
              for c in describe(cls)}, cls


LINES = { # as people type them: what is said
    '--use_gae': 'gae has no effect without baseline value',
    '--no_gae': 'gae has no effect without baseline value',
    '--gamma 0.9 --gae_lambda 0.9': 'gamma, gae_lambda have no effect without baseline value',
    '--stockfish-path sf --engine_nodes 50': 'stockfish_path, engine_nodes have no effect without '
                                             'reward_source engine',
    '--kl-warmup-factor 0.1': 'kl_warmup_factor has no effect without kl_warmup_steps',
    '--kl_target 3': 'kl_target has no effect with kl_controller fixed',
    '--ema_momentum 0.9': 'ema_momentum has no effect without normalize_rewards or baseline ema',
    '--coherence_share 0': 'coherence_share has no effect with reward_source rules, where nothing '
                           'else pays P (with auto the rows do)',
    '--clip_range 0.2': 'clip_low, clip_high have no effect with one update for each batch '
                        '(inner_steps 1, minibatches 1): the ratio is 1'
}

@pytest.mark.parametrize('line', LINES)
def test_said_in_one_line(line, capsys):
    read_config(TrainConfig, line.split(), 'rookworld_train', environ={})
    assert capsys.readouterr().err == LINES[line] + '\n'


@pytest.mark.parametrize('updates', ['--inner_steps 2', '--minibatches 2', '--inner_steps 2 --minibatches 2'])
def test_several_updates_of_a_batch_can_be_clipped(updates, capsys):
    read_config(TrainConfig, f'--clip_range 0.2 {updates}'.split(), 'rookworld_train', environ={})
    assert capsys.readouterr().err == ''


def test_said_in_python_too():
    with pytest.warns(NoEffect, match='gamma has no effect without baseline value') as told:
        TrainConfig(gamma=0.9)
    assert told[0].filename == __file__      # the line that made it


WORKING = [
    f'--lr {lr} --kl_coef {kl} --kl-divergence-threshold {threshold} --kl-warmup-steps {steps} '
    f'--kl-warmup-factor 0.0 --reward-warmup-steps 100'
    for lr in ('1e-5', '2e-5', '5e-5') for kl in (0.05, 0.1, 0.2)
    for threshold in ('5.0', '8', '10.0', '50') for steps in (10, 100)
]

def test_the_working_ranges_of_the_earlier_trainer(capsys):
    "Of its search: learning rates, coefficients, thresholds, warm-up."
    for line in WORKING:
        config, _ = read_config(TrainConfig, [*line.split(), '--max_steps', '200'], 'rookworld_train', environ={})
        assert (config.reward_warmup_steps, capsys.readouterr().err) == (100, ''), line
    config, _ = read_config(TrainConfig, '--adaptive_kl --target_kl 2 --kl_coef 0.02'.split(),
                            'rookworld_train', environ={})
    assert (config.kl_controller, config.kl_target, capsys.readouterr().err) == ('threshold', 2.0,
                                                                                 '')


def test_a_file_with_an_idle_field(tmp_path, capsys):
    (tmp_path/'run.json').write_text(json.dumps(dict(gamma=0.9, gae=True, health={'kl_act': 12.0})))
    read_config(TrainConfig, ['--config', str(tmp_path/'run.json')], 'rookworld_train', environ={})
    assert capsys.readouterr().err.splitlines() == ['gamma has no effect without baseline value']


@pytest.mark.parametrize('part, says', [
    ('[space]\ngamma = [0.9, 1.0]',
     'gamma has no effect without baseline value (in every combination): leave it out'),
    ('[base]\nengine_nodes = 50\n[space]\nseed = [0, 1]',
     'engine_nodes has no effect without reward_source engine (in every combination)'),
    ('[space]\nlr = [1e-5]', "TrainConfig has no field 'lr'; here it is learning_rate")
])
def test_a_sweep_over_nothing(part, says, tmp_path):
    (tmp_path/'space.toml').write_text(part)
    with pytest.raises(ValueError) as e: read_space(tmp_path/'space.toml')
    assert says in str(e.value)


def test_a_directory_of_logs_takes_one_run_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, _ = read_config(TrainConfig, ['--log_dir', 'lo*gs'], 'rookworld_train', environ={})
    for n in (1, 2):
        assert str(out := open_run(config.output_dir)) == f'lo*gs/run-00{n}'
        (out/'config.json').touch()
    assert [str(open_run(name)) for name in (None, 'NNN', 'a/b-NNN', 'plain')
            ] == ['runs/grpo-001', '001', 'a/b-001', 'plain']
