"""A reward of one's own, from the shell: named, noted, refused, failing in the middle of a run, and
resumed."""
import json
import pytest
from rookworld_nb.config import TrainConfig
from rookworld_nb.run.train import train
from runs import Started, some_positions, unmeasured

CHOICES = '--prompts_per_step 2 --group_size 2 --max_refills 0 --max_steps 3 --save_every 1000 --eval_prompts 4 --threads 1 --model nano'.split()
QUICK = 'import rookworld_nb.run.held_out as t, rookworld_nb.apps.cli as c\nt.evaluate_run, t._compare_runs, c._finish_run = (lambda *a: {}), (lambda *a: "[]"), print'
REWARDS = '''
def short(prompt, completion, example): return 1 - len(completion)/500
def forgot(prompt, completion, example): len(completion)
class Late:
    def score(self, examples, completions, step):
        return [1 - len(c)/LENGTHS[step] for c in completions]
LENGTHS = {1: 500, 2: 500}
'''


@pytest.fixture(scope='module')
def data(tmp_path_factory): return some_positions(tmp_path_factory.mktemp('data'))


def shell(*args, cwd):
    process = Started('train', *args, cwd=cwd, before=QUICK)
    printed, err = process.communicate()
    return process.returncode, printed, err


def rows(out, name):
    return [json.loads(line) for line in (out/f'{name}.jsonl').read_text().splitlines()]


def test_a_reward_that_fails_in_the_third_step(data, tmp_path):
    (tmp_path/'rewards.py').write_text(REWARDS)
    code, printed, err = shell(*CHOICES, '--data', data, '--output_dir', 'run', '--reward_function',
                               'rewards:Late', cwd=tmp_path)
    assert code == 1, err
    assert err.splitlines()[-1] == (
        'rookworld_train: failed with RewardError: reward rewards:Late failed: KeyError: 3 '
        '(line 6: return [1 - len(c)/LENGTHS[step] for c in completions]); kept in run: go on '
        'with rookworld_train --resume run'
    )
    assert f'{tmp_path}/rewards.py' in err and 'as rewards:Late gives it' in printed
    assert TrainConfig.from_json((tmp_path/'run/config.json').read_text()).reward_function == 'rewards:Late'
    assert [p.name for p in (tmp_path/'run/checkpoints').glob('step-*')] == ['step-2']
    for row in rows(tmp_path/'run', 'completions'):
        assert row['reward'] == pytest.approx(1 - len(row['completion'])/
                                              500) and 'the usual scorer: ' in row['reason']
    # the receipts are the usual ones
    assert {r['format_share']
            for r in rows(tmp_path/'run', 'metrics')} <= {k/4
                                                          for k in range(1, 5)}
    (tmp_path/'rewards.py').write_text(REWARDS.replace('2: 500', '2: 500, 3: 500'))
    code, printed, err = shell('--resume', 'run', cwd=tmp_path)
    assert code == 0, err
    assert 'goes on from step-2' in printed and [
        r['step'] for r in rows(tmp_path/'run', 'metrics')
    ] == [1, 2, 3]


@pytest.mark.parametrize('name, says', [
    ('rewrds:short',
     'reward_function rewrds:short: there is no module rewrds, neither here nor installed'),
    ('rewards:shrt',
     'reward_function rewards:shrt: rewards has no shrt; did you mean rewards:short?'),
    ('rewards.py', "reward_function must be package.module:name, not 'rewards.py'"),
    ('rewards:LENGTHS',
     'reward rewards:LENGTHS must be a function (prompt, completion, example) or an object with '
     'score(examples, completions, step)'
     ),
    ('rewards:forgot',
     'reward rewards:forgot must be a finite number for every completion, not None (for ')
])
def test_refused_before_the_run_has_a_directory(name, says, data, tmp_path):
    (tmp_path/'rewards.py').write_text(REWARDS)
    code, _, err = shell(*CHOICES, '--data', data, '--output_dir', 'run', '--reward_function', name,
                         cwd=tmp_path)
    assert (code, err.count('\n')) == (2, 1) and err.startswith(f'rookworld_train: {says}'), err
    assert not (tmp_path/'run').exists()


def test_begun_in_python_and_resumed_from_the_shell(data, tmp_path):
    def mine(prompt, completion, example): return 1 - len(completion)/500

    with unmeasured():
        train(
            TrainConfig(data=data, output_dir=str(tmp_path/'run'), max_steps=1, prompts_per_step=2,
                        group_size=2, max_refills=0, eval_prompts=4, threads=1), scorer=mine)
    (tmp_path/'rewards.py').write_text(REWARDS)
    code, _, err = shell('--resume', 'run', '--max_steps', 2, cwd=tmp_path)
    assert (code, err.count('\n')) == (
        2, 1
    ) and '<locals>.mine was given in Python, and cannot be found here: go on there, with train(config, resume=RUN, scorer=...)' in err, err
    code, _, err = shell('--resume', 'run', '--max_steps', 2, '--reward_function', 'rewards:short',
                         '--allow_config_change', cwd=tmp_path)
    assert code == 0, err
    assert [r['step'] for r in rows(tmp_path/'run', 'metrics')] == [1, 2]
