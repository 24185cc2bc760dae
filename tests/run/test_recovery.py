"What begins again when a run goes on with other choices."
from types import SimpleNamespace
from rookworld_nb.config import TrainConfig
from rookworld_nb.run import recovery
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
