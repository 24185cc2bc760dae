"""What happens to checkpoints and to a run that goes on from them: damage, full disks, rotation,
changed choices, two at a time. Each through the command, in a process of its own."""
import contextlib
import json
import os
import resource
import shutil
import subprocess
from unittest.mock import patch
import pytest
from rookworld_nb.config import TrainConfig
from rookworld_nb.run import checkpoint, recovery, train
from rookworld_nb.run.checkpoint import (CheckpointError, latest_good_checkpoint, list_checkpoints,
                                         mark_stable, stable_checkpoint, verify_checkpoint)
import runs
from runs import contents, die, undisturbed

CHOICES = '--model nano --max_steps 4 --save_every 1 --keep_last 9 --prompts_per_step 2 --group_size 2 --env_ratio 0.5 --kl_coef 0.6 --learning_rate 5e-5 --eval_prompts 4 --max_refills 0 --warmup_steps 2 --threads 1'.split(
)


@pytest.fixture(scope='module')
def given(tmp_path_factory):
    """The arguments of a run of four steps with all its checkpoints and without evaluations, what
    it leaves, and where."""
    return undisturbed(tmp_path_factory.mktemp('whole'), CHOICES, measured=False)


@pytest.fixture
def copy(given, tmp_path):
    "A copy of that run, as if its end had not been reached."
    out = shutil.copytree(given[2], tmp_path/'run')
    (out/'comparison.json').unlink()
    return out


def in_child(*how): return runs.in_child(*how, measured=False)
def names(out): return [p.name for p in list_checkpoints(out)]


def refusal(args, tmp_path, code=2, prepared=None):
    "The one line that the command says before it ends with that code."
    assert in_child(args, prepared, tmp_path/'err') == code
    lines = (tmp_path/'err').read_text().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


# ---- damage ----

def cut(file): os.truncate(file, file.stat().st_size // 2)
def grow(file): file.write_bytes(file.read_bytes() + b'\0')
def empty(file): os.truncate(file, 0)
def lose(file): file.unlink()


def flip(file):
    text = bytearray(file.read_bytes())
    text[len(text) // 3] ^= 64
    file.write_bytes(text)


@pytest.mark.parametrize('damage', [cut, grow, empty, lose, flip])
def test_every_damage_of_every_file_is_found(given, tmp_path, damage):
    whole = given[2]/'checkpoints/step-4'
    for name in sorted(p.name for p in whole.iterdir()):
        path = shutil.copytree(whole, tmp_path/name/'checkpoints/step-4')
        damage(path/name)
        with pytest.raises(CheckpointError, match=name): verify_checkpoint(path)
        found, told = latest_good_checkpoint(tmp_path/name)
        assert found is None and len(told) == 1 and name in told[0] and path.with_name(
            'step-4.damaged').is_dir() and not path.exists()


@pytest.mark.parametrize('damage, name', [(cut, 'optimizer.safetensors'),
                                          (flip, 'model.safetensors'), (lose, 'state.json'),
                                          (flip, 'MANIFEST.json')])
def test_a_damaged_newest_falls_back(given, copy, damage, name):
    damage(copy/'checkpoints/step-4'/name)
    damage(copy/'checkpoints/step-3'/name)
    assert in_child(['--resume', copy]) == 0
    log = (copy/'train.log').read_text()
    assert 'goes on from step-2\n' in log and f'step-4/{name}' in log and 'kept as step-3.damaged' in log
    assert sorted(
        p.name for p in copy.glob('checkpoints/*.damaged')) == ['step-3.damaged', 'step-4.damaged']
    shutil.rmtree(copy/'checkpoints/step-3.damaged')
    shutil.rmtree(copy/'checkpoints/step-4.damaged')
    assert contents(copy) == given[1]


def test_rows_without_a_step_or_a_reward_are_left_out_and_said(given, copy):
    "A JSON line that is no row of a run is what a half-written line is, also where the best checkpoint is sought."
    shutil.rmtree(copy/'checkpoints/step-4')
    for name in ('metrics', 'completions', 'eval'):
        with open(copy/f'{name}.jsonl', 'a') as f: f.write('{}\n{"step": "2"}\n{"step": null}\n')
    with open(copy/'metrics.jsonl', 'a') as f: f.write('{"step": 3}\n{"step": 3, "reward_mean": null}\n')
    assert in_child(['--resume', copy]) == 0
    log = (copy/'train.log').read_text()
    assert all(f'{name}.jsonl: 3 unreadable lines left out.' in log for name in ('metrics', 'completions', 'eval'))
    rows = [row for row in contents(copy)['metrics.jsonl'] if 'loss' in row]
    assert rows == given[1]['metrics.jsonl']


def test_nothing_is_deleted_when_all_are_damaged(copy, tmp_path):
    for path in list_checkpoints(copy): flip(path/'model.safetensors')
    rows = (copy/'metrics.jsonl').read_text()
    for _ in range(2):
        line = refusal(['--resume', copy], tmp_path)
        assert line.endswith(
            'run has no intact checkpoint left, only step-1.damaged, step-2.damaged, '
            'step-3.damaged, step-4.damaged: begin again in another --output_dir'
        )
    assert (copy/'metrics.jsonl').read_text() == rows


# ---- rotation ----

def test_the_last_the_best_and_the_stable_one_stay(given, copy):
    """Go on from step 1, which is called stable, for five more steps: then step 4 is, since every
    step after it was healthy."""
    for step in (2, 3, 4): shutil.rmtree(copy/f'checkpoints/step-{step}')
    mark_stable(copy, 1)
    assert in_child(['--resume', copy, *'--max_steps 6 --save_every 2 --keep_last 1'.split()]) == 0
    rewards = {
        r['step']: r['reward_mean']
        for r in map(json.loads, (copy/'metrics.jsonl').read_text().splitlines())
    }
    scores = {1: rewards[1]} | {step: (rewards[step - 1] + rewards[step])/2 for step in (2, 4, 6)}
    best = max(scores, key=lambda step: (scores[step], step))
    assert stable_checkpoint(copy).name == 'step-4'
    assert names(copy) == [f'step-{s}' for s in sorted({4, 6, best})]
    # a score is the mean reward of the steps since the checkpoint before
    assert [checkpoint._score(p) for p in list_checkpoints(copy)] == pytest.approx(
        [scores[s] for s in sorted({4, 6, best})])


# ---- the disk ----

@contextlib.contextmanager
def small_files(size):
    "No file may grow beyond so many bytes, for this process."
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    yield


def test_no_space_for_a_checkpoint(given, copy, tmp_path):
    for step in (3, 4): shutil.rmtree(copy/f'checkpoints/step-{step}')
    before = {p: p.read_bytes() for p in copy.glob('checkpoints/*/*')}
    line = refusal(['--resume', copy], tmp_path, 1, small_files(10_000_000))
    assert line == f'rookworld_train: failed with OSError: {copy}/checkpoints/.step-3.tmp: File too large; kept in {copy}: go on with rookworld_train --resume {copy}'
    assert {p: p.read_bytes()
            for p in copy.glob('checkpoints/*/*')
            } == before and not list(copy.glob('checkpoints/.*'))
    assert in_child(['--resume', copy]) == 0 and contents(copy) == given[1]


def test_no_space_for_a_row(given, copy, tmp_path):
    for step in (3, 4): shutil.rmtree(copy/f'checkpoints/step-{step}')
    full = sum(len(line) + 1 for line in (copy/'metrics.jsonl').read_text().splitlines()[:2]) + 100
    line = refusal(['--resume', copy], tmp_path, 1, small_files_once_begun(full))
    assert 'File too large; kept in' in line and names(copy) == ['step-1', 'step-2']
    assert in_child(['--resume', copy]) == 0 and contents(copy) == given[1]


def small_files_once_begun(size):
    "As `small_files`, from the first step on."
    step = train.train_step
    def work(*args):
        with small_files(size): return step(*args)
    return patch.object(train, 'train_step', work)


@pytest.fixture
def mounted(tmp_path):
    "A function that mounts a small file system of its own, or changes its options."
    place = tmp_path/'disk'
    place.mkdir()
    def mount(options):
        done = (subprocess.run(['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', place],
                               capture_output=True) if shutil.which('mount') else None)
        if not done or done.returncode: pytest.skip('mount is not allowed here')
        return place
    yield mount
    while os.path.ismount(place): subprocess.run(['umount', place], check=True)


def test_a_full_disk(given, mounted, tmp_path):
    "A real one, with room for two checkpoints of 28 MB and not for three."
    args, whole, _ = given
    out = mounted('size=60m')/'run'
    line = refusal([*args, out], tmp_path, 1)
    assert line == f'rookworld_train: failed with OSError: {out}/checkpoints/.step-3.tmp: No space left on device; kept in {out}: go on with rookworld_train --resume {out}'
    assert names(out) == ['step-1', 'step-2'
                          ] and latest_good_checkpoint(out) == (out/'checkpoints/step-2', [])
    mounted('remount,size=200m')
    assert in_child(['--resume', out]) == 0 and contents(out) == whole


def test_a_read_only_disk(given, mounted, tmp_path):
    out = shutil.copytree(given[2], mounted('size=200m')/'run')
    before = {p: p.stat().st_mtime_ns for p in out.rglob('*')}
    mounted('remount,ro')
    assert refusal(['--resume', out, '--max_steps', 5],
                   tmp_path) == f'rookworld_train: {out}/train.log: Read-only file system'
    assert {p: p.stat().st_mtime_ns for p in out.rglob('*')} == before
    assert 'Read-only file system' in refusal([*given[0], out.with_name('new')], tmp_path)


# ---- changed choices ----

def test_changed_choices_are_listed(copy, tmp_path):
    changed = ['--resume', copy, '--learning_rate', '2e-4', '--kl_coef', '0.2', '--max_steps', '5']
    line = refusal(changed, tmp_path)
    assert line == (f'rookworld_train: {copy} was started under other choices (kl_coef 0.6 -> '
                    f'0.2, learning_rate 5e-05 -> 0.0002): '
                    'with --allow_config_change it goes on under the new ones')
    assert in_child([*changed, '--allow-config-change']) == 0
    assert f'{copy}: changed since: max_steps 4 -> 5, kl_coef 0.6 -> 0.2, learning_rate 5e-05 -> 0.0002\n' in (
        copy/'train.log').read_text()
    row = json.loads((copy/'metrics.jsonl').read_text().splitlines()[-1])
    # the last step of a cosine that ends at a tenth
    assert (row['step'], row['kl_coef']) == (5, 0.2) and row['learning_rate'] == pytest.approx(2e-5)


def test_other_rows_are_refused(copy, tmp_path):
    other, longer = patch.object(checkpoint, 'data_sha256', lambda data: 'another'), ['--resume', copy, '--max_steps', 5]
    assert refusal(
        longer, tmp_path, prepared=other
    ) == f'rookworld_train: {copy}: the rows are not the ones that the run began with: with --allow_config_change it goes on nevertheless'
    assert in_child([*longer, '--allow_config_change'], other) == 0
    assert f'{copy}: the rows are not the ones that the run began with\n' in (
        copy/'train.log').read_text()


def test_another_version_is_told(copy):
    with patch.object(checkpoint, '__version__', '9.9.9'): assert in_child(['--resume', copy]) == 0
    assert f'{copy}: written with version {checkpoint.__version__}, going on with 9.9.9: perhaps not bit for bit the same\n' in (
        copy/'train.log').read_text()


def test_choices_that_an_earlier_version_did_not_have_are_told(copy):
    "Such as: its checkpoint says nothing about mates among the prompts."
    def early(*how, load=recovery.load_checkpoint, **more):
        state = load(*how, **more)
        del state['config']['rare_share'], state['config']['kl_type']
        return state
    with patch.object(recovery, 'load_checkpoint', early): assert in_child(['--resume', copy]) == 0
    usual = TrainConfig()
    assert f'{copy}: begun by an earlier version, which did not have these choices: rare_share {usual.rare_share}, kl_type {usual.kl_type}\n' in (
        copy/'train.log').read_text()


def test_one_at_a_time(copy, tmp_path):
    with checkpoint.only_writer(copy):
        assert refusal(['--resume', copy],
                       tmp_path) == f'rookworld_train: {copy} is being written by another process'


# ---- which run, and how long ----

def test_resume_auto(given, tmp_path):
    args, whole, finished = given
    (tmp_path/'runs').mkdir()
    for i, name in enumerate(['old', 'new', 'complete']):
        shutil.copytree(finished, tmp_path/'runs'/name)
        os.utime(tmp_path/'runs'/name/'config.json', (i, i))
        if name != 'complete': (tmp_path/'runs'/name/'comparison.json').unlink()
    for name in ('new', 'old'):
        assert in_child(['--resume', 'auto'], contextlib.chdir(tmp_path)) == 0
        assert contents(tmp_path/'runs'/name) == whole
    assert refusal(
        ['--resume', 'auto'], tmp_path, prepared=contextlib.chdir(tmp_path)
    ) == 'rookworld_train: --resume auto: none of the 3 runs below runs/ is left unfinished'


def test_a_complete_run_is_extended(tmp_path):
    "What was done stays, evaluations as well. Killed on its longer way it ends the same."
    _, whole, finished = undisturbed(tmp_path, CHOICES)
    out, again = (shutil.copytree(finished, tmp_path/name) for name in ('longer', 'again'))
    assert runs.in_child(['--resume', out, '--max_steps', 6]) == 0
    longer = contents(out)
    assert longer['metrics.jsonl'][:4] == whole['metrics.jsonl'] and [
        r['step'] for r in longer['metrics.jsonl']
    ] == [1, 2, 3, 4, 5, 6]
    assert [r for r in longer['eval.jsonl'] if r['step'] <= 4] == whole['eval.jsonl'] and longer['eval.jsonl'][-1]['step'] == 6
    assert (out/'comparison-step-4.json').read_text() == whole['comparison'] and json.loads(
        (out/'config.json').read_text())['max_steps'] == 6
    log = (out/'train.log').read_text()
    assert 'changed since: max_steps 4 -> 6\n' in log and 'the learning rate follows the schedule of 6 steps from here on' in log

    save = recovery.save_checkpoint
    def dying(run, step, *rest):
        if step == 5: die()
        return save(run, step, *rest)

    assert runs.in_child(['--resume', again, '--max_steps', 6],
                         patch.object(recovery, 'save_checkpoint', dying)) == -9
    assert runs.in_child(['--resume', again]) == 0 and contents(again) == longer


def test_fewer_steps_than_done_are_refused(given, tmp_path):
    assert refusal(['--resume', given[2], '--max_steps', 3],
                   tmp_path).endswith('has done 4 steps, more than max_steps 3')
