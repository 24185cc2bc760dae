"What begins again when a run goes on with other choices."
import shutil
from types import SimpleNamespace
import pytest
from rookworld_nb.config import PretrainConfig, TrainConfig
from rookworld_nb.run import recovery
from rookworld_nb.run.checkpoint import CheckpointError, newest_unfinished, stable_checkpoint, starting_point
from rookworld_nb.run.health import Signal

SAME = dict(data='rows', model='weights')


def test_evaluations_begin_again_where_they_cannot_be_compared(tmp_path):
    def otherwise(*changed, was=SAME, known=(), **choices):
        state = dict(origin=was, config=dict.fromkeys(known), step=3)
        return recovery._evaluates_otherwise(tmp_path, TrainConfig(**choices), state, dict.fromkeys(changed), SAME)
    assert not otherwise() and not otherwise('learning_rate')
    assert not otherwise('data')                               # the same rows under another name
    assert otherwise('temperature') and otherwise(was=SAME | dict(data='others'))
    # an early version had one limit for all tasks
    assert otherwise(max_new_tokens=64) and not otherwise(max_new_tokens=64, known=['env_max_new_tokens'])
    (tmp_path/'eval-step-2.jsonl').touch()
    assert not otherwise()
    (tmp_path/'eval-step-3.jsonl').touch()                     # begun again after this checkpoint
    assert otherwise()


def test_the_state_of_a_choice_begins_again_with_the_choice():
    learner = SimpleNamespace(kl=SimpleNamespace(state_dict=lambda: 'new'),
                              baseline_moments=SimpleNamespace(state_dict=lambda: 'new'))
    for choice, part in dict(kl_coef='kl', kl_controller='kl', normalize_rewards='baseline_moments',
                             ema_warmup_steps='baseline_moments').items():
        assert recovery._anew({choice: ''}, learner) == {part: 'new'}
    assert recovery._anew(dict(learning_rate=''), learner) == {}


def test_earlier_evaluations_are_kept_once(tmp_path):
    current, kept = tmp_path/'eval.jsonl', tmp_path/'eval-step-3.jsonl'
    for written in ('before', 'of a run that was killed in the new evaluation'):
        current.write_text(written)
        recovery._put_by_evaluations(tmp_path, 3)
        assert kept.read_text() == 'before' and not current.exists()


def test_the_comparison_of_a_run_that_is_made_longer(tmp_path):
    "It is kept where the run had ended, and dropped where the run goes back before its end."
    (tmp_path/'config.json').write_text(TrainConfig(max_steps=5).to_json())
    current, kept = tmp_path/'comparison.json', tmp_path/'comparison-step-5.json'
    current.write_text('[]')
    assert recovery._close_comparison(tmp_path, 5) and kept.read_text() == '[]' and not current.exists()
    current.write_text('[]')
    assert not recovery._close_comparison(tmp_path, 3) and not current.exists() and kept.exists()


def test_when_to_give_up():
    def hopeless(recoveries, learned, *signals):
        learner = SimpleNamespace(recoveries=recoveries, config=TrainConfig(max_recoveries=2))
        return recovery._hopeless(SimpleNamespace(learner=learner, monitor=SimpleNamespace(learned=learned)),
                                  [Signal(name, 0.0, level, '') for name, level in signals])
    mute, far = ('tokens', 'act'), ('kl', 'act')
    assert [hopeless(n, True, far) for n in (0, 1, 2)] == [False, False, True]
    assert hopeless(0, False, far, mute)                   # there was never anything to learn from
    assert not hopeless(0, True, mute) and not hopeless(0, False, far) and not hopeless(0, False, ('tokens', 'warn'))


def test_a_larger_micro_batch_is_used_where_it_was_asked_for():
    "A run's own is the smallest that ever fitted; one that the user changes is taken."
    learner = SimpleNamespace(micro_batch_size=64)
    assert recovery._anew(dict(micro_batch_size='16 -> 64'), learner) == dict(micro_batch_size=64)


def test_stable_is_what_enough_healthy_steps_have_followed(tmp_path):
    "Also where more checkpoints are kept than there are yet."
    for keep, stable_at in ((2, 15), (4, 25), (10, 25)):
        out = tmp_path/f'{keep}'
        monitor, named = SimpleNamespace(config=TrainConfig(save_every=5, keep_last=keep, stable_after=20, max_steps=100), unhealthy=0), {}
        for step in range(5, 41, 5):
            recovery.name_stable(out, step, monitor, True)
            (out/f'checkpoints/step-{step}').mkdir(parents=True)
            if found := recovery.stable_checkpoint(out): named.setdefault(found.name, step)
        assert named['step-5'] == stable_at


def ended(out, steps, every, comparison=False):
    "A run without checkpoints."
    out.mkdir()
    (out/'config.json').write_text(TrainConfig(max_steps=9, save_every=every).to_json())
    (out/'metrics.jsonl').write_text(''.join(f'{{"step": {i + 1}}}\n' for i in range(steps)))
    if comparison: (out/'comparison.json').write_text('[]')
    return out


def test_the_log_of_a_run_whose_checkpoints_are_gone_is_kept(tmp_path):
    "Starting over emptied it, also behind --resume auto; a run that was killed before its first checkpoint starts over."
    lost = [ended(tmp_path/'a', 9, 20, comparison=True), ended(tmp_path/'b', 5, 4)]
    for out in lost:
        with pytest.raises(CheckpointError, match=rf'has the log of {5 if out.name == "b" else 9} steps, but no checkpoint any more'):
            starting_point(out)
    with pytest.raises(FileNotFoundError, match='none of the 2 runs'): newest_unfinished(tmp_path)
    # due at an evaluation; at the end of a supervised run; gone back to the beginning, and killed there
    evaluated, taught, back = (ended(tmp_path/name, steps, 20) for name, steps in (('evaluated', 6), ('taught', 9), ('back', 30)))
    (evaluated/'config.json').write_text(TrainConfig(max_steps=9, save_every=20, eval_every=5).to_json())
    (taught/'pretrain.json').write_text('{"steps": 9}')
    with open(taught/'metrics.jsonl', 'a') as f: f.write('{}\n{"step": "nine"}\n')
    for out, steps in ((evaluated, 6), (taught, 9), (back, 30)):
        with pytest.raises(CheckpointError, match=f'has the log of {steps} steps'): starting_point(out)
    (back/'metrics-discarded.jsonl').write_text(''.join(f'{{"recovery": 1, "step": {i + 1}}}\n' for i in range(30)))
    assert starting_point(back) == (None, [])
    (taught/'pretrain.json').write_text('{"steps": 0}')        # as it is written before the first step
    assert starting_point(taught) == (None, [])
    # a supervised run is not saved with its evaluations
    (taught/'config.json').write_text(PretrainConfig(max_steps=20, save_every=20, eval_every=5).to_json())
    assert starting_point(taught) == (None, [])
    for out in (back, taught): shutil.rmtree(out)
    early = ended(tmp_path/'c', 4, 4)
    assert starting_point(early) == (None, []) and newest_unfinished(tmp_path) == early


@pytest.mark.parametrize('text', ['{}', '[]', '{"checkpoint": 3}', '{'])
def test_a_stable_json_that_names_nothing_is_refused(text, tmp_path):
    (tmp_path/'checkpoints').mkdir()
    (tmp_path/'checkpoints'/'stable.json').write_text(text)
    with pytest.raises(ValueError, match='stable.json names no checkpoint'): stable_checkpoint(tmp_path)
